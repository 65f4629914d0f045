"""The proof at capture time: right captures pass, every kind of wrong one is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx
from transformers import PreTrainedModel

from spec_compile.errors import CaptureError
from spec_compile.export.seams import IMPLEMENTATION
from spec_compile.export.self_check import check_capture
from spec_compile.ops import CACHED_ATTENTION
from spec_compile.passes.rewrite import insert_call
from spec_compile.program import Graph
from tests.helpers.captured import capture_model, eager_model
from tests.helpers.tiny_models import VOCAB_SIZE

aten = torch.ops.aten
MAX_LENGTH = 32
WINDOW: dict[str, Any] = {"sliding_window": 4, "num_hidden_layers": 1}


def check(model: PreTrainedModel, graph: Graph, max_length: int = MAX_LENGTH) -> float:
    return check_capture(model, graph, vocab_size=VOCAB_SIZE, max_length=max_length)


def test_a_right_capture_passes_and_the_model_stays_ready() -> None:
    model = eager_model("mistral", **WINDOW)
    graph = capture_model(model)
    assert check(model, graph) < 1e-5
    assert model.config._attn_implementation == IMPLEMENTATION


@pytest.mark.parametrize(
    "other", [{"seed": 1}, {"sliding_window": 100}, {"tie_word_embeddings": True}], ids=str
)
def test_a_capture_of_something_else_is_refused_by_the_model_s_name(other: dict[str, Any]) -> None:
    graph = capture_model(eager_model("mistral", **WINDOW | other))
    model = eager_model("mistral", **WINDOW)
    with pytest.raises(CaptureError, match=r"^the captured graph of MistralForCausalLM differs"):
        check(model, graph)


def test_a_model_whose_logits_are_not_numbers_is_refused() -> None:
    model = eager_model("llama", num_hidden_layers=1)
    model.lm_head.weight.data[3] = float("nan")
    graph = capture_model(model)
    with pytest.raises(CaptureError, match=r"LlamaForCausalLM differs"):
        check(model, graph)


def with_longest_length(graph: Graph) -> Graph:
    """The graph as if every row had as many valid entries as the longest."""

    def edit(edited: fx.Graph) -> int:
        found = [node for node in edited.nodes if node.target is CACHED_ATTENTION]
        for node in found:
            with edited.inserting_before(node):
                longest = insert_call(edited, aten.amax.default, (node.args[5],))
                lengths = insert_call(edited, aten.mul.Tensor, (node.args[5], 0))
                lengths = insert_call(edited, aten.add.Tensor, (lengths, longest))
            node.update_arg(5, lengths)
        return len(found)

    changed, count = graph.edited(edit)
    assert count == 1
    return changed


def test_a_cache_that_does_not_roll_back_is_refused() -> None:
    model = eager_model("llama", num_hidden_layers=1)
    graph = with_longest_length(capture_model(model))
    with pytest.raises(CaptureError, match=r"LlamaForCausalLM differs"):
        check(model, graph)


@pytest.mark.parametrize(
    "kind,max_length,k", [("llama", 2, 1), ("gpt2", 3, 2), ("llama", 8, 7), ("gpt2", 8, 4)]
)
def test_short_rows_are_no_reason_to_refuse(kind: str, max_length: int, k: int) -> None:
    layers = {"n_layer": 1} if kind == "gpt2" else {"num_hidden_layers": 1}
    model = eager_model(kind, **layers)
    graph = capture_model(model, max_length=max_length, slots=max_length + k)
    assert check(model, graph, max_length) < 1e-5
