"""RoPE scaling: each kind equal to transformers within its limit, refused by name beyond it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from spec_compile.errors import CaptureError
from tests.helpers.captured import (
    CachedRun,
    capture_model,
    eager_logits,
    eager_model,
    random_tokens,
)

LIMIT = 24
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "factor": 4.0,
    "short_factor": [1.0, 1.2, 1.4, 1.6],
    "long_factor": [4.0, 4.5, 5.0, 5.5],
    "original_max_position_embeddings": LIMIT,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
KINDS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 1e3},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 1e4,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": LIMIT,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": LIMIT,
    },
    "dynamic": DYNAMIC,
    "longrope": LONGROPE,
}
# `dynamic` counts from the positions the model was trained on.
POSITIONS = {"dynamic": LIMIT}
SCALED = [kind for kind in KINDS if kind not in ("default", "dynamic")]


def rope_options(kind: str) -> dict[str, Any]:
    """The options of one layer of a model with this RoPE."""
    positions = POSITIONS.get(kind, 128)
    return {
        "rope_parameters": dict(KINDS[kind]),
        "max_position_embeddings": positions,
        "num_hidden_layers": 1,
    }


@pytest.mark.parametrize("kind", KINDS)
def test_equal_to_transformers_up_to_the_limit(kind: str) -> None:
    options = rope_options(kind)
    graph = capture_model(eager_model("llama", **options), max_length=LIMIT, slots=LIMIT + 2)
    run = CachedRun(graph, 1)
    tokens = random_tokens(1, LIMIT, seed=5)
    steps = [run(tokens[:, :7], [0]), run(tokens[:, 7:8], [7]), run(tokens[:, 8:], [8])]
    expected = eager_logits(eager_model("llama", **options), tokens[0])
    torch.testing.assert_close(torch.cat(steps, dim=1)[0], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", SCALED)
def test_the_scaling_is_seen_in_the_logits(kind: str) -> None:
    """The reference itself changes with the scaling, so equality above proves something."""
    tokens = random_tokens(LIMIT, seed=5)
    plain = rope_options(kind) | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    difference = eager_logits(eager_model("llama", **rope_options(kind)), tokens) - eager_logits(
        eager_model("llama", **plain), tokens
    )
    assert difference.abs().max() > 1e-2


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_beyond_the_limit_is_refused_by_name(kind: str) -> None:
    model = eager_model("llama", **rope_options(kind))
    with pytest.raises(CaptureError, match=rf"'{kind}'.*--max-length {LIMIT} or less"):
        capture_model(model, max_length=LIMIT + 1)


def test_kinds_that_do_not_move_go_beyond_the_original_context() -> None:
    options = rope_options("yarn")
    graph = capture_model(eager_model("llama", **options), max_length=2 * LIMIT, slots=50)
    tokens = random_tokens(1, 2 * LIMIT, seed=6)
    expected = eager_logits(eager_model("llama", **options), tokens[0])
    torch.testing.assert_close(CachedRun(graph, 1)(tokens, [0])[0], expected, rtol=0, atol=1e-4)


def test_phi3_longrope_within_its_original_context() -> None:
    """Phi3 keeps the original context in its own option and picks the factors by itself."""
    options: dict[str, Any] = {
        "rope_parameters": {name: LONGROPE[name] for name in LONGROPE if name != "factor"},
        "original_max_position_embeddings": LIMIT,
        "num_hidden_layers": 1,
    }
    graph = capture_model(eager_model("phi3", **options), max_length=LIMIT, slots=LIMIT + 2)
    tokens = random_tokens(1, LIMIT, seed=7)
    expected = eager_logits(eager_model("phi3", **options), tokens[0])
    torch.testing.assert_close(CachedRun(graph, 1)(tokens, [0])[0], expected, rtol=0, atol=1e-4)
    with pytest.raises(CaptureError, match=rf"'longrope'.*--max-length {LIMIT} or less"):
        capture_model(eager_model("phi3", **options), max_length=LIMIT + 1)


def test_layers_with_ropes_of_their_own() -> None:
    """Gemma3 has one RoPE per kind of layer; only the full layers' is scaled."""
    options: dict[str, Any] = {
        "rope_parameters": {
            "full_attention": dict(DYNAMIC),
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
        },
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 8,
        "max_position_embeddings": LIMIT,
    }
    graph = capture_model(eager_model("gemma3_text", **options), max_length=LIMIT, slots=26)
    tokens = random_tokens(1, LIMIT, seed=8)
    expected = eager_logits(eager_model("gemma3_text", **options), tokens[0])
    torch.testing.assert_close(CachedRun(graph, 1)(tokens, [0])[0], expected, rtol=0, atol=1e-4)
    with pytest.raises(CaptureError, match="'dynamic'"):
        capture_model(eager_model("gemma3_text", **options), max_length=LIMIT + 1)
