"""Captured encoders and decoders against transformers' own eager forward, and what is refused."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from spec_compile.errors import CaptureError
from spec_compile.export.capture_seq2seq import Seq2SeqGraphs, capture_seq2seq
from spec_compile.export.checkpoint import prepare
from spec_compile.export.self_check import check_capture
from spec_compile.ops import CACHED_ATTENTION
from spec_compile.program import as_function, call
from tests.helpers.captured import empty_caches, random_tokens, updated_caches
from tests.helpers.tiny_models import VOCAB_SIZE
from tests.helpers.tiny_seq2seq import eager_seq2seq_logits, tiny_seq2seq

MAX_LENGTH, SLOTS = 32, 36
LENGTHS = (0, 1, 5)
SOURCE_LENGTHS = (7, 1, 4)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("t5", {}),
    "t5, gated, head of its own": (
        "t5",
        {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "bart": ("bart", {}),
    "bart, scaled embeddings, deep encoder": (
        "bart",
        {"scale_embedding": True, "encoder_layers": 3, "decoder_layers": 1},
    ),
    "marian": ("marian", {}),
}


@cache
def captured(name: str) -> tuple[Seq2SeqGraphs, PreTrainedModel]:
    """The graphs, and an own eager copy of the model that capture has never touched."""
    kind, options = MODELS[name]
    model, reference = tiny_seq2seq(kind, **options), tiny_seq2seq(kind, **options)
    prepare(model)
    reference.set_attn_implementation("eager")
    return capture(model), reference


def capture(model: PreTrainedModel, max_length: int = MAX_LENGTH) -> Seq2SeqGraphs:
    return capture_seq2seq(
        model, max_length=max_length, slots=max_length + SLOTS - MAX_LENGTH, batch_size=4
    )


class SourceRun:
    """Captured graphs over padded sources, the decoder fed call by call."""

    def __init__(self, graphs: Seq2SeqGraphs, sources: Tensor, lengths: tuple[int, ...]) -> None:
        self.graph, self.module = graphs.decoder, as_function(graphs.decoder)
        given = {"source_tokens": sources, "source_lengths": torch.tensor(lengths)}
        with torch.no_grad():
            states = call(graphs.encoder, as_function(graphs.encoder), given)
        self.source = {**states, "source_lengths": given["source_lengths"]}
        self.caches = empty_caches(self.graph, len(sources))

    def __call__(self, tokens: Tensor, lengths: tuple[int, ...]) -> Tensor:
        inputs = {"tokens": tokens, "lengths": torch.tensor(lengths), **self.source, **self.caches}
        with torch.no_grad():
            outputs = call(self.graph, self.module, inputs)
        self.caches = updated_caches(self.graph, outputs)
        return outputs["logits"]


def assert_equal(found: Tensor, expected: Tensor) -> None:
    """To 1e-5 of the largest logit."""
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


def sources_of(rows: int, width: int) -> Tensor:
    return random_tokens(rows, width, seed=5)


@pytest.mark.parametrize("name", MODELS)
def test_ragged_sources_and_rows_after_a_rollback(name: str) -> None:
    """Sources of 7, 1 and 4 tokens; cache lengths 0, 1 and 5 after two rows forgot a prefix."""
    graphs, model = captured(name)
    sources = sources_of(3, max(SOURCE_LENGTHS))
    run = SourceRun(graphs, sources, SOURCE_LENGTHS)
    prefix, new = random_tokens(3, 5, seed=1), random_tokens(3, 4, seed=2)
    run(prefix, (0, 0, 0))
    logits = run(new, LENGTHS)
    for row, (length, width) in enumerate(zip(LENGTHS, SOURCE_LENGTHS, strict=True)):
        committed = torch.cat([prefix[row, :length], new[row]])
        expected = eager_seq2seq_logits(model, sources[row, :width], committed)[length:]
        assert_equal(logits[row], expected)


@pytest.mark.parametrize("name", MODELS)
def test_a_wide_step_equals_single_steps_and_a_full_forward(name: str) -> None:
    graphs, model = captured(name)
    sources, tokens = sources_of(2, 6), random_tokens(2, 20, seed=3)
    wide, single = (SourceRun(graphs, sources, (6, 6)) for _ in range(2))
    logits = wide(tokens, (0, 0))
    steps = [single(tokens[:, [i]], (i, i)) for i in range(tokens.shape[1])]
    assert_equal(torch.cat(steps, dim=1), logits)
    for row in range(2):
        expected = eager_seq2seq_logits(model, sources[row], tokens[row])
        assert_equal(logits[row], expected)


@pytest.mark.parametrize("name", ["t5", "bart", "marian"])
def test_slots_past_the_last_position_may_be_written(name: str) -> None:
    """At the model's last position: what is written behind it disturbs nothing."""
    graphs, model = captured(name)
    source, tokens = sources_of(1, 3), random_tokens(1, SLOTS, seed=4)
    run = SourceRun(graphs, source, (3,))
    run(tokens[:, : MAX_LENGTH - 1], (0,))
    logits = run(tokens[:, MAX_LENGTH - 1 :], (MAX_LENGTH - 1,))
    expected = eager_seq2seq_logits(model, source[0], tokens[0, :MAX_LENGTH])[-1]
    assert_equal(logits[0, 0], expected)


def test_what_the_graphs_hold() -> None:
    """The encoder is no part of the decoder's graph, nor the decoder's layers of the encoder's."""
    graphs, model = captured("t5")
    decoder = {spec.name: spec.shape for spec in (*graphs.decoder.inputs, *graphs.decoder.outputs)}
    assert decoder["tokens"] == ("B", "T")
    assert decoder["source_lengths"] == ("B",)
    assert decoder["cross_key.1"] == ("B", 4, "N", 8)
    assert decoder["value_cache.1"] == ("B", 4, SLOTS, 8)
    assert decoder["logits"] == ("B", "T", VOCAB_SIZE)
    encoder = {spec.name: spec.shape for spec in graphs.encoder.outputs}
    assert encoder == {
        f"cross_{kind}.{i}": ("B", 4, "N", 8) for kind in ("key", "value") for i in range(2)
    }
    written = [node for node in graphs.decoder.nodes if node.target is CACHED_ATTENTION]
    assert len(written) == model.config.num_decoder_layers
    names = {
        part: set(getattr(graphs, part).exported.state_dict) for part in ("encoder", "decoder")
    }
    assert not any("encoder.block" in name for name in names["decoder"])
    cross = {"model.decoder.block.0.layer.1.EncDecAttention.k.weight"}
    assert cross <= names["encoder"]
    assert not any(".SelfAttention.q" in name and "decoder" in name for name in names["encoder"])


def check(model: PreTrainedModel, graphs: Seq2SeqGraphs) -> float:
    return check_capture(
        model,
        graphs.decoder,
        vocab_size=VOCAB_SIZE,
        max_length=MAX_LENGTH,
        encoder=graphs.encoder,
    )


@pytest.mark.parametrize("part", ["decoder", "encoder"])
def test_the_capture_is_checked_against_the_model(part: str) -> None:
    model = tiny_seq2seq("bart", seed=3)
    prepare(model)
    graphs = capture(model)
    assert check(model, graphs) < 1e-5
    with torch.no_grad():
        table: Any = getattr(model, f"get_{part}")().embed_positions
        table.weight[4].neg_()
    assert check(model, graphs) < 1e-5  # weights are shared, not copied
    other = tiny_seq2seq("bart", seed=3)
    prepare(other)
    with pytest.raises(CaptureError, match="BartForConditionalGeneration differs"):
        check(other, graphs)


def test_a_bias_that_is_not_of_distance_is_refused() -> None:
    model = tiny_seq2seq("t5")
    prepare(model)
    decoder: Any = getattr(model, "decoder")  # noqa: B009 (not a declared attribute)
    attention = decoder.block[0].layer[0].SelfAttention
    plain = attention.compute_bias

    def by_place(query_length: int, key_length: int, **options: Any) -> Tensor:
        bias: Tensor = plain(query_length, key_length, **options)
        return bias + torch.arange(key_length)

    attention.compute_bias = by_place
    with pytest.raises(CaptureError, match="more than the distance"):
        capture(model)


def test_positions_that_count_real_tokens_are_refused() -> None:
    """M2M100 counts positions from what is no padding, which no table of positions says."""
    model = tiny_seq2seq("m2m_100")
    prepare(model)
    with pytest.raises(CaptureError, match="M2M100ForConditionalGeneration"):
        check(model, capture(model))
