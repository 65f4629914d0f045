"""`fuse_acceptance`: forward, sampling and rule in one graph emit what plain Python does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from spec_compile.acceptance import RULES
from spec_compile.errors import PreconditionError
from spec_compile.passes.fuse_acceptance import FuseAcceptance
from spec_compile.program import Graph, Program, as_function, call
from tests.helpers.captured import CachedRun, updated_caches
from tests.helpers.hand_made import floats, hand_made, integers
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


def fuse(acceptance: str, vocab_size: int = VOCAB_SIZE) -> FuseAcceptance:
    config = config_of("verify", acceptance)
    return FuseAcceptance(config, RULES[acceptance], vocab_size, MAX_LENGTH)


@pytest.fixture(scope="module")
def programs(pair: Pair) -> dict[str, Program]:
    """The program after the pass, by rule."""
    return {name: fuse(name)(pair.program).program for name in ("rejection", "greedy")}


@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("acceptance", ["rejection", "greedy"])
def test_emits_what_a_forward_and_the_rule_do(
    pair: Pair, programs: dict[str, Program], acceptance: str, width: int
) -> None:
    graph = programs[acceptance].graphs["verify"]
    each = random_round(pair, width, K + 1, seed=width)
    samplings = [
        row_sampling(each.tensors, row) if acceptance == "rejection" else None for row in ACTIVE
    ]
    drafted = [
        propose(pair.draft, each.committed[row], samplings[row], torch.rand(K)) for row in ACTIVE
    ]
    rest = torch.zeros(1, K, dtype=torch.int64)
    drafts = {
        "draft_tokens": torch.cat([torch.tensor([tokens for tokens, _ in drafted]), rest]),
        "draft_probs": torch.nn.functional.pad(
            torch.stack([laws for _, laws in drafted]), (0, 0, 0, 0, 0, 1)
        ),
    }
    outputs = call(graph, as_function(graph), each.tensors | drafts)
    caches = updated_caches(graph, outputs)
    for row in ACTIVE:
        committed, uniforms = each.committed[row], each.tensors["uniforms"][row]
        expected = verify_and_accept(pair.target, committed, drafted[row], samplings[row], uniforms)
        emitted = (outputs["output_tokens"][row].tolist(), int(outputs["num_emitted"][row]))
        assert emitted == expected
        fresh = CachedRun(pair.program.graphs["target"], 1)
        read = committed + drafted[row][0]
        fresh(torch.tensor([read]), [0])
        for name, cache in fresh.caches.items():
            filled = caches[name][row, :, : len(read)]
            torch.testing.assert_close(filled, cache[0, :, : len(read)], rtol=0, atol=1e-4)


@pytest.mark.parametrize("length", range(K + 1))
@pytest.mark.parametrize("acceptance", ["rejection", "greedy"])
def test_one_graph_verifies_any_number_of_draft_tokens(
    pair: Pair, programs: dict[str, Program], acceptance: str, length: int
) -> None:
    """What stands behind the first of them in `draft_probs` and `uniforms` does not matter."""
    graph = programs[acceptance].graphs["verify"]
    assert graph.input("draft_tokens").shape == ("B", "J")
    assert graph.outputs[0].shape == ("B", "J+1")
    each = random_round(pair, 2, K + 1, seed=length)
    samplings = [
        row_sampling(each.tensors, row) if acceptance == "rejection" else None for row in ACTIVE
    ]
    drafts = torch.zeros(len(LENGTHS), length, dtype=torch.int64)
    laws = torch.full((len(LENGTHS), K, VOCAB_SIZE), torch.nan)
    expected = []
    for row in ACTIVE:
        tokens, law = propose(pair.draft, each.committed[row], samplings[row], torch.rand(K))
        drafts[row] = torch.tensor(tokens[:length])
        laws[row, : len(law[:length])] = law[:length]
        uniforms = each.tensors["uniforms"][row, : length + 1]
        drafted = (tokens[:length], law[:length])
        expected.append(
            verify_and_accept(pair.target, each.committed[row], drafted, samplings[row], uniforms)
        )
    inputs = each.tensors | {"draft_tokens": drafts, "draft_probs": laws}
    outputs = call(graph, as_function(graph), inputs)
    assert outputs["output_tokens"].shape == (len(LENGTHS), length + 1)
    for row in ACTIVE:
        emitted = (outputs["output_tokens"][row].tolist(), int(outputs["num_emitted"][row]))
        assert emitted == expected[row]


@pytest.mark.parametrize("acceptance", ["rejection", "greedy"])
def test_plain_decoding_of_the_target(
    pair: Pair, programs: dict[str, Program], acceptance: str
) -> None:
    graph = programs[acceptance].graphs["target"]
    each = random_round(pair, 2, 1)
    outputs = call(graph, as_function(graph), each.tensors)
    assert outputs["logits"].shape == (len(LENGTHS), 1, VOCAB_SIZE)
    for row in ACTIVE:
        sampling = row_sampling(each.tensors, row) if acceptance == "rejection" else None
        nothing: tuple[list[int], Tensor] = ([], torch.zeros(0, VOCAB_SIZE))
        uniforms = each.tensors["uniforms"][row]
        expected = verify_and_accept(pair.target, each.committed[row], nothing, sampling, uniforms)
        emitted = (outputs["output_tokens"][row].tolist(), int(outputs["num_emitted"][row]))
        assert emitted == expected


def table_model(table: Tensor) -> Graph:
    """A model whose logits are a row of `table`, picked by the token; its cache stays as it is."""
    return hand_made(
        lambda t: {
            "logits": torch.nn.functional.embedding(t["tokens"], t["table"]),
            "next_key_cache.0": t["key_cache.0"].clone(),
        },
        integers("tokens", "B", "T"),
        integers("lengths", "B"),
        floats("key_cache.0", "B", 1, 4, 2),
        table=table,
    )


def table_inputs(tokens: list[int], num_uniforms: int = 1) -> dict[str, Tensor]:
    rows = len(tokens)
    return {
        "tokens": torch.tensor(tokens)[:, None],
        "num_new": torch.ones(rows, dtype=torch.int64),
        "lengths": torch.zeros(rows, dtype=torch.int64),
        "draft_tokens": torch.tensor([[0, 1, 2]] * rows),
        "draft_probs": torch.full((rows, K, 8), 1 / 8),
        "key_cache.0": torch.zeros(rows, 1, 4, 2),
        "temperature": torch.ones(rows),
        "top_k": torch.zeros(rows, dtype=torch.int64),
        "top_p": torch.ones(rows),
        "min_p": torch.zeros(rows),
        "uniforms": torch.full((rows, num_uniforms), 0.5),
    }


@pytest.mark.parametrize("acceptance", ["rejection", "greedy"])
def test_logits_that_are_not_numbers_emit_nothing_in_their_row(acceptance: str) -> None:
    table = torch.zeros(8, 8)
    table[5, 3], table[6, 0] = float("nan"), float("inf")
    table[7, 2] = float("-inf")  # a token that is forbidden, which is fine
    program = fuse(acceptance, 8)(Program({"target": table_model(table)})).program
    for name, num_uniforms in (("verify", K + 1), ("target", 1)):
        graph = program.graphs[name]
        inputs = table_inputs([0, 5, 6, 7], num_uniforms)
        outputs = call(graph, as_function(graph), inputs)
        assert (outputs["num_emitted"] > 0).tolist() == [True, False, False, True]


def test_a_draft_law_that_is_not_a_number_emits_nothing_in_its_row() -> None:
    program = fuse("rejection", 8)(Program({"target": table_model(torch.zeros(8, 8))})).program
    graph = program.graphs["verify"]
    inputs = table_inputs([0, 5, 6], K + 1)
    inputs["draft_probs"][1, 1] = float("nan")
    inputs["draft_probs"][2, 2] = float("inf")
    outputs = call(graph, as_function(graph), inputs)
    assert (outputs["num_emitted"] > 0).tolist() == [True, False, False]


@pytest.mark.parametrize("head_rows", [6, 8, 10])
def test_the_head_is_cut_or_padded_to_the_vocabulary(head_rows: int) -> None:
    """Padding has no mass; rows past the vocabulary, the best logits here, are cut off."""
    table = torch.arange(head_rows).float().expand(8, -1).contiguous()
    program = fuse("greedy", 8)(Program({"target": table_model(table)})).program
    graph = program.graphs["target"]
    outputs = call(graph, as_function(graph), table_inputs([0, 1]))
    assert outputs["output_tokens"].tolist() == [[min(head_rows, 8) - 1]] * 2
    assert outputs["num_emitted"].tolist() == [1, 1]
    assert outputs["logits"].shape[-1] == 8


def test_rewrites_two_graphs_once(programs: dict[str, Program], pair: Pair) -> None:
    result = fuse("greedy")(pair.program)
    assert result.rewrites == 2
    assert set(result.program.graphs) == {"target", "draft", "verify"}
    again = fuse("greedy")(result.program)
    assert again.rewrites == 0
    assert again.program.structural_hash() == result.program.structural_hash()


def test_needs_a_target() -> None:
    with pytest.raises(PreconditionError, match=r"^pass fuse_acceptance needs the graph target$"):
        fuse("greedy")(Program({}))


def test_an_engine_of_fixed_sizes_verifies_k_tokens(pair: Pair) -> None:
    config = replace(config_of("verify", "rejection"), backend="tensorrt-rtx")
    fused = FuseAcceptance(config, RULES["rejection"], VOCAB_SIZE, MAX_LENGTH)
    graph = fused(pair.program).program.graphs["verify"]
    assert graph.input("draft_tokens").shape == ("B", K)
    assert graph.outputs[0].shape == ("B", K + 1)
