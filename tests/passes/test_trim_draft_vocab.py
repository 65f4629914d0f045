"""`trim_draft_vocab`: the trimmed draft proposes as the whole one with all other logits at -inf."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spec_compile.acceptance import RULES
from spec_compile.errors import PreconditionError
from spec_compile.passes.head import Head, find_head
from spec_compile.passes.trim_draft_vocab import TrimDraftVocab
from spec_compile.passes.unroll_draft import UnrollDraft
from spec_compile.program import Program, as_function, call
from spec_compile.sampling import process_logits, sample
from tests.helpers.captured import CachedRun, capture_model, eager_logits, random_tokens
from tests.helpers.tiny_models import VOCAB_SIZE, tiny_model
from tests.passes.conftest import (
    LENGTHS,
    MAX_LENGTH,
    K,
    Pair,
    config_of,
    random_round,
    row_sampling,
)

IDS = tuple(range(0, VOCAB_SIZE, 3))
ACTIVE = range(len(LENGTHS) - 1)
CONFIG = config_of("verify", "rejection")


def trim(ids: tuple[int, ...] | None = IDS, vocab_size: int = VOCAB_SIZE) -> TrimDraftVocab:
    return TrimDraftVocab(CONFIG, ids, vocab_size, MAX_LENGTH)


def unroll(program: Program, acceptance: str, vocab_size: int = VOCAB_SIZE) -> Program:
    config = config_of("verify", acceptance)
    return UnrollDraft(config, RULES[acceptance], vocab_size, MAX_LENGTH)(program).program


def masked(logits: Tensor) -> Tensor:
    """`logits` with those of all ids but IDS at -inf."""
    kept = torch.zeros(logits.shape[-1], dtype=torch.bool)
    kept[list(IDS)] = True
    return logits.masked_fill(~kept, float("-inf"))


@pytest.fixture(scope="module")
def trimmed(pair: Pair) -> Program:
    return trim()(pair.program).program


def test_the_head_has_the_rows_of_the_ids(pair: Pair, trimmed: Program) -> None:
    tokens = random_tokens(2, 5)
    whole, cut = (CachedRun(p.graphs["draft"], 2) for p in (pair.program, trimmed))
    torch.testing.assert_close(cut(tokens, [0, 0]), whole(tokens, [0, 0])[..., list(IDS)])
    products, fewer = (
        [n for n in p.graphs["draft"].nodes if "linear" in str(n.target)]
        for p in (pair.program, trimmed)
    )
    assert fewer[-1].meta["val"].shape[-1] == len(IDS)
    assert len(fewer) == len(products)


@pytest.mark.parametrize("acceptance", ["rejection", "greedy"])
def test_proposes_as_the_whole_draft_with_other_logits_at_minus_infinity(
    pair: Pair, trimmed: Program, acceptance: str
) -> None:
    graph = unroll(trimmed, acceptance).graphs["draft"]
    each = random_round(pair, 2, K)
    outputs = call(graph, as_function(graph), each.tensors)
    for row in ACTIVE:
        committed = list(each.committed[row])
        for index in range(K):
            logits = masked(eager_logits(pair.draft, committed)[-1:])
            if acceptance == "greedy":
                token = int(logits.argmax())
            else:
                law = process_logits(logits[None], row_sampling(each.tensors, row))[0]
                found = outputs["draft_probs"][row, index]
                torch.testing.assert_close(found, law[0], rtol=0, atol=1e-5)
                token = int(sample(law, each.tensors["uniforms"][row, index : index + 1]))
            assert int(outputs["draft_tokens"][row, index]) == token
            committed.append(token)


def test_a_soft_capped_and_tied_head_is_cut() -> None:
    model = tiny_model("gemma2", num_hidden_layers=1, final_logit_softcapping=2.0)
    graph = capture_model(model, max_length=MAX_LENGTH, slots=MAX_LENGTH + K, prefix="draft_")
    head = find_head(graph)
    assert isinstance(head, Head)
    assert len(head.pointwise) == 3
    cut = trim()(Program({"draft": graph})).program.graphs["draft"]
    tokens = random_tokens(2, 5)
    expected = CachedRun(graph, 2)(tokens, [0, 0])[..., list(IDS)]
    torch.testing.assert_close(CachedRun(cut, 2)(tokens, [0, 0]), expected)


def test_a_head_it_cannot_take_apart_loses_columns_of_its_logits() -> None:
    model = tiny_model("llama", num_hidden_layers=1)
    model.lm_head = torch.nn.Sequential(model.lm_head, torch.nn.Softplus())
    graph = capture_model(model, max_length=MAX_LENGTH, slots=MAX_LENGTH + K, prefix="draft_")
    result = trim()(Program({"draft": graph}))
    assert result.rewrites == 1
    assert [miss.reason for miss in result.mismatches] == [
        "aten.softplus.default in front of the logits may mix tokens"
    ]
    tokens = random_tokens(2, 5)
    expected = CachedRun(graph, 2)(tokens, [0, 0])[..., list(IDS)]
    cut = CachedRun(result.program.graphs["draft"], 2)
    torch.testing.assert_close(cut(tokens, [0, 0]), expected)


def test_without_ids_nothing_changes(pair: Pair) -> None:
    result = trim(None)(pair.program)
    assert result.rewrites == 0
    assert result.program is pair.program


def test_rewrites_once(pair: Pair, trimmed: Program) -> None:
    assert trim()(pair.program).rewrites == 1
    assert trim()(trimmed).rewrites == 0
    assert trim()(unroll(trimmed, "greedy")).rewrites == 0


def test_reads_tokens_that_the_draft_has_no_embedding_of(pair: Pair) -> None:
    larger = VOCAB_SIZE + 6
    program = unroll(trim(vocab_size=larger)(pair.program).program, "rejection", larger)
    graph = program.graphs["draft"]
    each = random_round(pair, 1, K)
    unknown, last = (
        call(
            graph,
            as_function(graph),
            each.tensors | {"tokens": torch.full_like(each.tensors["tokens"], token)},
        )
        for token in (VOCAB_SIZE + 5, VOCAB_SIZE - 1)
    )
    assert torch.equal(unknown["draft_tokens"], last["draft_tokens"])
    assert unknown["draft_probs"].shape[-1] == larger


@pytest.mark.parametrize("ids", [(), (3, 2), (2, 2), (-1, 4), (0, VOCAB_SIZE)])
def test_refuses_ids_that_are_not_the_draft_s(pair: Pair, ids: tuple[int, ...]) -> None:
    with pytest.raises(PreconditionError, match=r"needs ascending ids below the 64 of the draft$"):
        trim(ids)(pair.program)


def test_needs_a_draft() -> None:
    with pytest.raises(PreconditionError, match=r"^pass trim_draft_vocab needs the graph draft$"):
        trim()(Program({}))
