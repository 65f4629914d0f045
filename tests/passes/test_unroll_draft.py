"""`unroll_draft`: the draft loop in one graph proposes what a Python loop over the model does."""

from __future__ import annotations

import pytest
import torch

from spec_compile.acceptance import RULES
from spec_compile.errors import PreconditionError
from spec_compile.passes.unroll_draft import UnrollDraft
from spec_compile.program import Program, as_function, call
from tests.helpers.captured import CachedRun, updated_caches
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
)

ACTIVE = range(len(LENGTHS) - 1)


def unroll(acceptance: str, vocab_size: int = VOCAB_SIZE) -> UnrollDraft:
    return UnrollDraft(config_of("verify", acceptance), RULES[acceptance], vocab_size, MAX_LENGTH)


@pytest.fixture(scope="module")
def programs(pair: Pair) -> dict[str, Program]:
    """The program after the pass, by rule."""
    return {name: unroll(name)(pair.program).program for name in ("rejection", "greedy")}


@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("acceptance", ["rejection", "greedy"])
def test_proposes_what_a_loop_over_the_model_does(
    pair: Pair, programs: dict[str, Program], acceptance: str, width: int
) -> None:
    graph = programs[acceptance].graphs["draft"]
    each = random_round(pair, width, K)
    outputs = call(graph, as_function(graph), each.tensors)
    samples = acceptance == "rejection"
    assert ("draft_probs" in outputs) == samples
    caches = updated_caches(graph, outputs)
    for row in ACTIVE:
        sampling = row_sampling(each.tensors, row) if samples else None
        committed, uniforms = each.committed[row], each.tensors["uniforms"][row]
        tokens, laws = propose(pair.draft, committed, sampling, uniforms)
        assert outputs["draft_tokens"][row].tolist() == tokens
        if samples:
            torch.testing.assert_close(outputs["draft_probs"][row], laws, rtol=0, atol=1e-5)
        # All but the last proposal have been read.
        fresh = CachedRun(pair.program.graphs["draft"], 1)
        read = committed + tokens[:-1]
        fresh(torch.tensor([read]), [0])
        for name, cache_ in fresh.caches.items():
            filled = caches[name][row, :, : len(read)]
            torch.testing.assert_close(filled, cache_[0, :, : len(read)], rtol=0, atol=1e-4)


def test_a_greedy_row_s_law_is_one_hot(pair: Pair, programs: dict[str, Program]) -> None:
    graph = programs["rejection"].graphs["draft"]
    each = random_round(pair, 2, K)
    outputs = call(graph, as_function(graph), each.tensors)
    (row,) = [r for r in ACTIVE if each.tensors["temperature"][r] == 0]
    one_hot = torch.nn.functional.one_hot(outputs["draft_tokens"][row], VOCAB_SIZE).float()
    assert torch.equal(outputs["draft_probs"][row], one_hot)


def test_rewrites_once_and_leaves_the_rest(pair: Pair, programs: dict[str, Program]) -> None:
    result = unroll("rejection")(pair.program)
    assert result.rewrites == 1
    assert result.program.graphs["target"] is pair.program.graphs["target"]
    again = unroll("rejection")(result.program)
    assert again.rewrites == 0
    assert again.program.structural_hash() == result.program.structural_hash()


def test_needs_a_draft() -> None:
    with pytest.raises(PreconditionError, match=r"^pass unroll_draft needs the graph draft$"):
        unroll("greedy")(Program({}))


def test_never_proposes_an_id_that_the_tokenizer_does_not_know(pair: Pair) -> None:
    """Rows of the head past the tokenizer's vocabulary are cut off."""
    program = unroll("rejection", VOCAB_SIZE - 4)(pair.program).program
    graph = program.graphs["draft"]
    each = random_round(pair, 1, K)
    outputs = call(graph, as_function(graph), each.tensors)
    assert outputs["draft_probs"].shape[-1] == VOCAB_SIZE - 4
    totals = outputs["draft_probs"].sum(-1)
    torch.testing.assert_close(totals, torch.ones_like(totals))


def test_reads_tokens_that_the_draft_has_no_embedding_of(pair: Pair) -> None:
    """Ids past the draft's head read as its last one; they are never proposed."""
    program = unroll("rejection", VOCAB_SIZE + 6)(pair.program).program
    graph = program.graphs["draft"]
    each = random_round(pair, 1, K)
    unknown, last = (
        each.tensors | {"tokens": torch.full_like(each.tensors["tokens"], token)}
        for token in (VOCAB_SIZE + 5, VOCAB_SIZE - 1)
    )
    outputs, expected = (call(graph, as_function(graph), tensors) for tensors in (unknown, last))
    assert torch.equal(outputs["draft_tokens"], expected["draft_tokens"])
    assert int(outputs["draft_tokens"].max()) < VOCAB_SIZE
    assert float(outputs["draft_probs"][..., VOCAB_SIZE:].sum()) == 0
