"""The proof at capture time: right captures pass, every kind of wrong one is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from spec_compile.errors import CaptureError
from spec_compile.export.capture import IMPLEMENTATION
from spec_compile.export.self_check import check_capture
from spec_compile.passes.rewrite import is_call
from spec_compile.program import Graph, Program
from tests.helpers.captured import capture_model, eager_model
from tests.helpers.tiny_models import VOCAB_SIZE

WINDOW: dict[str, Any] = {"sliding_window": 4, "num_hidden_layers": 1}


def test_a_right_capture_passes_and_the_model_stays_ready() -> None:
    model = eager_model("mistral", **WINDOW)
    graph = capture_model(model)
    assert check_capture(model, graph, VOCAB_SIZE) < 1e-5
    assert model.config._attn_implementation == IMPLEMENTATION


@pytest.mark.parametrize(
    "other", [{"seed": 1}, {"sliding_window": 100}, {"tie_word_embeddings": True}], ids=str
)
def test_a_capture_of_something_else_is_refused_by_the_model_s_name(other: dict[str, Any]) -> None:
    graph = capture_model(eager_model("mistral", **WINDOW | other))
    model = eager_model("mistral", **WINDOW)
    with pytest.raises(CaptureError, match=r"^the captured graph of MistralForCausalLM differs"):
        check_capture(model, graph, VOCAB_SIZE)


def test_a_model_whose_logits_are_not_numbers_is_refused() -> None:
    model = eager_model("llama", num_hidden_layers=1)
    model.lm_head.weight.data[3] = float("nan")
    graph = capture_model(model)
    with pytest.raises(CaptureError, match=r"LlamaForCausalLM differs"):
        check_capture(model, graph, VOCAB_SIZE)


def without_rollback(graph: Graph) -> Graph:
    """The graph as if all rows had as many entries as the first."""
    attention = torch.ops.spec_compile.cached_attention.default

    def same_length(edited: Any) -> int:
        count = 0
        for node in [n for n in edited.nodes if is_call(n, attention)]:
            with edited.inserting_before(node):
                lengths = edited.call_function(
                    torch.ops.aten.amax.default, (node.args[5], [0], True)
                )
                lengths = edited.call_function(torch.ops.aten.expand.default, (lengths, [2]))
            node.update_arg(5, lengths)
            count += 1
        return count

    changed, count = graph.edited(same_length)
    assert count == 1
    return changed


def test_a_cache_that_does_not_roll_back_is_refused() -> None:
    model = eager_model("llama", num_hidden_layers=1)
    graph = without_rollback(capture_model(model))
    assert Program({"g": graph}).structural_hash()
    with pytest.raises(CaptureError, match=r"LlamaForCausalLM differs"):
        check_capture(model, graph, VOCAB_SIZE)


@pytest.mark.parametrize("max_length,k", [(2, 1), (3, 2), (8, 4), (8, 7)])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_short_rows_are_no_reason_to_refuse(kind: str, max_length: int, k: int) -> None:
    layers = {"n_layer": 1} if kind == "gpt2" else {"num_hidden_layers": 1}
    model = eager_model(kind, **layers)
    graph = capture_model(model, max_length=max_length, slots=max_length + k)
    assert check_capture(model, graph, VOCAB_SIZE) < 1e-5
