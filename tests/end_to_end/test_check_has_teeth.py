"""`check` fails bundles whose acceptance rule is wrong in the ways that rules are wrong."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import pytest
import torch
from torch import Tensor

from spec_compile.acceptance import RULES
from spec_compile.acceptance.base import count_accepted, emit, take_tokens
from spec_compile.acceptance.rejection import Rejection
from spec_compile.check import CheckOptions, check_bundle
from spec_compile.config import SpecConfig
from spec_compile.driver import compile as compile_pair
from spec_compile.passes import pipeline
from spec_compile.sampling import argmax, sample
from tests.end_to_end.conftest import MAX_LENGTH, Folders

OPTIONS = CheckOptions(law_samples=4000, max_new_tokens=12, num_threads=1)


class UntemperedDraft(Rejection):
    """Divides by the draft's law at another temperature than it was drawn at."""

    def __call__(
        self,
        draft_tokens: Tensor,
        draft_probs: Tensor | None,
        target_probs: Tensor,
        uniforms: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        assert draft_probs is not None
        powers = draft_probs**0.5
        raw = powers / powers.sum(-1, keepdim=True)
        return super().__call__(draft_tokens, raw, target_probs, uniforms)


class GreedyDraft(Rejection):
    """Tests the draft's best token, whose law is one-hot, against the soft law."""

    def __call__(
        self,
        draft_tokens: Tensor,
        draft_probs: Tensor | None,
        target_probs: Tensor,
        uniforms: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        assert draft_probs is not None
        best = argmax(draft_probs) if draft_tokens.shape[-1] else draft_tokens
        return super().__call__(best, draft_probs, target_probs, uniforms)


class NotStrict(Rejection):
    """Accepts what the target forbids when the uniform is exactly 0."""

    def __call__(
        self,
        draft_tokens: Tensor,
        draft_probs: Tensor | None,
        target_probs: Tensor,
        uniforms: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        assert draft_probs is not None and uniforms is not None
        if draft_tokens.shape[-1] == 0:
            return super().__call__(draft_tokens, draft_probs, target_probs, uniforms)
        _, right = super().__call__(draft_tokens, draft_probs, target_probs, uniforms)
        draft_mass = take_tokens(draft_probs, draft_tokens)
        target_mass = take_tokens(target_probs, draft_tokens)
        num_accepted = count_accepted(uniforms[:, :-1] * draft_mass <= target_mass)
        num_accepted = torch.maximum(num_accepted, right - 1)
        row = torch.arange(draft_tokens.shape[0])
        following = sample(target_probs[row, num_accepted], uniforms[:, -1])
        output, _ = super().__call__(draft_tokens, draft_probs, target_probs, uniforms)
        wrong, emitted = emit(draft_tokens, num_accepted, following)
        same = (num_accepted == right - 1)[:, None]
        return torch.where(same, output, wrong), emitted


def verdicts(
    rule: Rejection, folders: Folders, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """Outcome of each check of a bundle compiled with `rule` in place of `rejection`."""
    monkeypatch.setattr(pipeline, "RULES", MappingProxyType({**RULES, "rejection": rule}))
    config = SpecConfig(num_speculative_tokens=2, max_length=MAX_LENGTH)
    compile_pair(str(folders("target")), str(folders("random")), folder / "bundle", config)
    report = check_bundle(folder / "bundle", OPTIONS)
    return {result.name: result.status for result in report.results}


@pytest.mark.parametrize("rule", [UntemperedDraft(), GreedyDraft()], ids=["raw", "one_hot"])
def test_a_wrong_draft_law_fails_by_the_output_law(
    rule: Rejection, folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = verdicts(rule, folders, tmp_path, monkeypatch)
    assert found["law"] == "FAIL"
    assert found["greedy"] == "pass"


def test_a_comparison_that_is_not_strict_fails_at_the_edges(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = verdicts(NotStrict(), folders, tmp_path, monkeypatch)
    assert found == {"files": "pass", "greedy": "pass", "law": "pass", "edges": "FAIL"}


def test_the_right_rule_passes(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = verdicts(Rejection(), folders, tmp_path, monkeypatch)
    assert found == {"files": "pass", "greedy": "pass", "law": "pass", "edges": "pass"}
