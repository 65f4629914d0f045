"""Captured graphs against transformers' own eager forward, and what is refused."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedModel

from spec_compile.errors import CaptureError
from spec_compile.export.checkpoint import load_model, open_checkpoint
from spec_compile.ops import CACHED_ATTENTION
from spec_compile.program import Graph
from tests.helpers.captured import (
    CachedRun,
    capture_model,
    eager_logits,
    eager_model,
    random_tokens,
)
from tests.helpers.tiny_models import VOCAB_SIZE, tiny_model

WINDOW = 4
NUM_NEW = 4
LENGTHS = (0, 1, 5)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, 1 key-value head, tied head": (
        "llama",
        {"num_key_value_heads": 1, "tie_word_embeddings": True},
    ),
    "llama, 4 key-value heads, biases": (
        "llama",
        {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True},
    ),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "mistral, window": ("mistral", {"sliding_window": WINDOW}),
    "gemma2, window and soft-capping": (
        "gemma2",
        {
            "sliding_window": WINDOW,
            "attn_logit_softcapping": 1.5,
            "final_logit_softcapping": 2.0,
        },
    ),
    "gemma3, windows": (
        "gemma3_text",
        {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "phi3, window": ("phi3", {"sliding_window": WINDOW}),
    "phi3, partial rotary": ("phi3", {"partial_rotary_factor": 0.5}),
    "gpt2": ("gpt2", {}),
}


@cache
def captured(name: str) -> tuple[Graph, PreTrainedModel]:
    """The graph, and an own eager copy of the model that capture has never touched."""
    kind, options = MODELS[name]
    return capture_model(eager_model(kind, **options)), eager_model(kind, **options)


@pytest.mark.parametrize("name", MODELS)
def test_rows_of_different_lengths_after_a_rollback(name: str) -> None:
    """Cache lengths 0, 1 and 5 in one call of several tokens; two rows forget part of a prefix."""
    graph, model = captured(name)
    run = CachedRun(graph, len(LENGTHS))
    prefix = random_tokens(len(LENGTHS), max(LENGTHS), seed=1)
    new = random_tokens(len(LENGTHS), NUM_NEW, seed=2)
    run(prefix, [0] * len(LENGTHS))
    logits = run(new, LENGTHS)
    for row, length in enumerate(LENGTHS):
        committed = torch.cat([prefix[row, :length], new[row]])
        expected = eager_logits(model, committed)[length:]
        torch.testing.assert_close(logits[row], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_a_wide_step_equals_single_steps(name: str) -> None:
    graph, model = captured(name)
    wide, single = CachedRun(graph, 2), CachedRun(graph, 2)
    tokens = random_tokens(2, 11, seed=3)
    expected = wide(tokens, [0, 0])
    steps = [single(tokens[:, [i]], [i, i]) for i in range(tokens.shape[1])]
    torch.testing.assert_close(torch.cat(steps, dim=1), expected, rtol=0, atol=1e-4)
    for row in range(2):
        full = eager_logits(model, tokens[row])
        torch.testing.assert_close(expected[row], full, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["mistral, window", "gemma2, window and soft-capping"])
def test_the_window_is_seen_in_the_logits(name: str) -> None:
    """The reference itself changes without the window, so equality above proves something."""
    kind, options = MODELS[name]
    unlimited = eager_model(kind, **options | {"sliding_window": 64})
    tokens = random_tokens(11, seed=3)
    with_window = eager_logits(captured(name)[1], tokens)
    assert (eager_logits(unlimited, tokens) - with_window)[WINDOW:].abs().max() > 1e-2


def test_one_attention_node_a_layer_and_symbolic_sizes() -> None:
    graph, model = captured("llama")
    nodes = [node for node in graph.nodes if node.target is CACHED_ATTENTION]
    assert len(nodes) == model.config.num_hidden_layers
    by_name = {spec.name: spec for spec in (*graph.inputs, *graph.outputs)}
    assert by_name["tokens"].shape == ("B", "T")
    assert by_name["logits"].shape == ("B", "T", VOCAB_SIZE)
    assert by_name["key_cache.1"].shape == ("B", 2, 36, 8)
    assert by_name["next_value_cache.1"].alias_of == "value_cache.1"


def test_slots_past_the_last_position_may_be_written() -> None:
    """The last round of a full row writes drafts behind `max_length`; they disturb nothing."""
    graph, model = captured("gpt2")
    run = CachedRun(graph, 1)
    tokens = random_tokens(1, 36, seed=4)
    run(tokens[:, :31], [0])
    logits = run(tokens[:, 31:], [31])
    expected = eager_logits(model, tokens[0, :32])[31]
    torch.testing.assert_close(logits[0, 0], expected, rtol=0, atol=1e-4)


def save(config: Any, folder: Path) -> Path:
    torch.manual_seed(0)
    getattr(transformers, "AutoModelForCausalLM").from_config(config).save_pretrained(folder)  # noqa: B009
    return folder


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "recurrent": (
        "Mamba",
        {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4},
        "Mamba",
    ),
    "positions inside attention": (
        "Bloom",
        {"vocab_size": 64, "hidden_size": 16, "n_layer": 2, "n_head": 2},
        "BloomForCausalLM",
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_other_architectures_are_refused_with_the_reason(reason: str, tmp_path: Path) -> None:
    kind, options, message = REFUSED[reason]
    config = getattr(transformers, f"{kind}Config")(**options)
    folder = save(config, tmp_path / "model")
    with pytest.raises(CaptureError, match=message) as caught:
        capture_model(load_model(open_checkpoint(str(folder)), torch.float32))
    assert "\n" not in str(caught.value)


def test_attention_sinks_are_refused() -> None:
    sizes = {"num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 8}
    model = tiny_model("gpt_oss", **sizes)
    with pytest.raises(CaptureError, match=r"GptOssForCausalLM.*s_aux"):
        capture_model(model)
