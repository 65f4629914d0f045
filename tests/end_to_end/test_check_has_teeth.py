"""`check` fails bundles whose acceptance rule is wrong in the ways that rules are wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from spec_compile.acceptance.base import count_accepted, emit, required, take_tokens
from spec_compile.acceptance.rejection import Rejection
from spec_compile.check import CheckOptions, check_bundle
from spec_compile.config import SpecConfig
from spec_compile.driver import compile as compile_pair
from spec_compile.sampling import argmax, sample
from tests.end_to_end.conftest import MAX_LENGTH, Folders

RIGHT = Rejection()
OPTIONS = CheckOptions(law_samples=4000, max_new_tokens=12, num_threads=1)


Arguments = tuple[Tensor, Tensor, Tensor, Tensor]
Wrong = Callable[[Arguments], tuple[Tensor, Tensor]]


class Mistaken(Rejection):
    """Says that it is exact, and does something else where there are draft tokens."""

    name = "mistaken"
    symbolic_length = False

    def __init__(self, wrong: Wrong) -> None:
        self.wrong = wrong

    def __call__(
        self,
        draft_tokens: Tensor,
        draft_probs: Tensor | None,
        target_probs: Tensor,
        uniforms: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        if draft_tokens.shape[-1] == 0:
            return RIGHT(draft_tokens, draft_probs, target_probs, uniforms)
        laws = required(self.name, draft_probs, uniforms)
        return self.wrong((draft_tokens, laws[0], target_probs, laws[1]))


def untempered_draft(given: Arguments) -> tuple[Tensor, Tensor]:
    """Divides by the draft's law at another temperature than it was drawn at."""
    tokens, draft_probs, target_probs, uniforms = given
    powers = draft_probs**0.5
    return RIGHT(tokens, powers / powers.sum(-1, keepdim=True), target_probs, uniforms)


def greedy_draft(given: Arguments) -> tuple[Tensor, Tensor]:
    """Tests the draft's best token, whose law is one-hot, against the soft law."""
    _, draft_probs, target_probs, uniforms = given
    return RIGHT(argmax(draft_probs), draft_probs, target_probs, uniforms)


def not_strict(given: Arguments) -> tuple[Tensor, Tensor]:
    """Accepts what the target forbids when the uniform is exactly 0."""
    tokens, draft_probs, target_probs, uniforms = given
    output, right = RIGHT(*given)
    draft_mass = take_tokens(draft_probs, tokens)
    target_mass = take_tokens(target_probs, tokens)
    num_accepted = count_accepted(uniforms[:, :-1] * draft_mass <= target_mass)
    num_accepted = torch.maximum(num_accepted, right - 1)
    following = sample(target_probs[torch.arange(tokens.shape[0]), num_accepted], uniforms[:, -1])
    wrong, emitted = emit(tokens, num_accepted, following)
    same = (num_accepted == right - 1)[:, None]
    return torch.where(same, output, wrong), emitted


def verdicts(rule: Rejection, folders: Folders, folder: Path) -> dict[str, str]:
    """Outcome of each check of a bundle compiled with `rule`."""
    pair, config = ("target", "random"), SpecConfig(2, max_length=MAX_LENGTH)
    target, draft = (str(folders(name)) for name in pair)
    compile_pair(target, draft, folder / "bundle", config, rule=rule)
    report = check_bundle(folder / "bundle", OPTIONS)
    return {result.name: result.status for result in report.results}


@pytest.mark.parametrize("wrong", [untempered_draft, greedy_draft])
def test_a_wrong_draft_law_fails_by_the_output_law(
    wrong: Wrong, folders: Folders, tmp_path: Path
) -> None:
    found = verdicts(Mistaken(wrong), folders, tmp_path)
    assert found["law"] == "FAIL"
    assert found["greedy"] == "pass"


def test_a_comparison_that_is_not_strict_fails_at_the_edges(
    folders: Folders, tmp_path: Path
) -> None:
    found = verdicts(Mistaken(not_strict), folders, tmp_path)
    # Greedy rows draw nothing: their uniforms are 0, the very edge.
    assert found == {"files": "pass", "greedy": "FAIL", "law": "pass", "edges": "FAIL"}


def test_the_right_rule_passes(folders: Folders, tmp_path: Path) -> None:
    found = verdicts(Mistaken(lambda given: RIGHT(*given)), folders, tmp_path)
    assert found == {"files": "pass", "greedy": "pass", "law": "pass", "edges": "pass"}
