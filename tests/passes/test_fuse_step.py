"""`fuse_step`: a whole round in one graph emits what drafting and verifying apart do."""

from __future__ import annotations

import pytest
import torch

from spec_compile.acceptance import RULES
from spec_compile.errors import PreconditionError
from spec_compile.passes.fuse_acceptance import FuseAcceptance
from spec_compile.passes.fuse_step import FuseStep
from spec_compile.passes.unroll_draft import UnrollDraft
from spec_compile.program import Program, as_function, call
from tests.helpers.tiny_models import VOCAB_SIZE
from tests.passes.conftest import (
    LENGTHS,
    MAX_LENGTH,
    K,
    Pair,
    config_of,
    propose,
    random_round,
    row_sampling,
    verify_and_accept,
)

ACTIVE = range(len(LENGTHS) - 1)
NUM_UNIFORMS = {"rejection": 2 * K + 1, "greedy": 0}


@pytest.fixture(scope="module")
def programs(pair: Pair) -> dict[str, tuple[Program, Program]]:
    """The program before and after the pass, by rule."""
    found = {}
    for name in ("rejection", "greedy"):
        config, rule = config_of("step", name), RULES[name]
        before = pair.program
        for kind in (UnrollDraft, FuseAcceptance):
            before = kind(config, rule, VOCAB_SIZE, MAX_LENGTH)(before).program
        result = FuseStep(config, MAX_LENGTH)(before)
        assert result.rewrites == 1
        found[name] = (before, result.program)
    return found


@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("acceptance", ["rejection", "greedy"])
def test_a_round_is_drafting_then_verification(
    pair: Pair, programs: dict[str, tuple[Program, Program]], acceptance: str, width: int
) -> None:
    graph = programs[acceptance][1].graphs["step"]
    counts = set()
    for seed in range(3):
        each = random_round(pair, width, NUM_UNIFORMS[acceptance], seed=seed)
        outputs = call(graph, as_function(graph), each.tensors)
        for row in ACTIVE:
            sampling = row_sampling(each.tensors, row) if acceptance == "rejection" else None
            committed, uniforms = each.committed[row], each.tensors["uniforms"][row]
            drafted = propose(pair.draft, committed, sampling, uniforms[:K])
            expected = verify_and_accept(pair.target, committed, drafted, sampling, uniforms[K:])
            emitted = (outputs["output_tokens"][row].tolist(), int(outputs["num_emitted"][row]))
            assert emitted == expected
            counts.add(expected[1])
    assert len(counts) > 1  # rounds with and without rejections have been seen


def test_caches_of_both_models_are_those_of_the_graphs_apart(
    pair: Pair, programs: dict[str, tuple[Program, Program]]
) -> None:
    before, after = programs["rejection"]
    each = random_round(pair, 2, NUM_UNIFORMS["rejection"])
    step, draft, verify = after.graphs["step"], before.graphs["draft"], before.graphs["verify"]
    fused = call(step, as_function(step), each.tensors)
    uniforms = each.tensors["uniforms"]
    drafted = call(draft, as_function(draft), each.tensors | {"uniforms": uniforms[:, :K]})
    verified = call(
        verify, as_function(verify), each.tensors | drafted | {"uniforms": uniforms[:, K:]}
    )
    for spec in step.outputs:
        apart = drafted if spec.name in drafted else verified
        torch.testing.assert_close(fused[spec.name], apart[spec.name], rtol=0, atol=1e-5)
    assert {spec.alias_of for spec in step.outputs if spec.alias_of} == {
        spec.name for spec in step.inputs if spec.is_cache
    }


def test_rewrites_once(programs: dict[str, tuple[Program, Program]]) -> None:
    _, after = programs["greedy"]
    assert list(after.graphs) == ["target", "step"]
    again = FuseStep(config_of("step", "greedy"), MAX_LENGTH)(after)
    assert again.rewrites == 0
    assert again.program.structural_hash() == after.structural_hash()


def test_needs_both_halves_of_a_round(pair: Pair) -> None:
    with pytest.raises(PreconditionError, match=r"^pass fuse_step needs the graph verify$"):
        FuseStep(config_of("step", "greedy"), MAX_LENGTH)(pair.program)
