"""The shipped draft of SmolLM2-135M-Instruct: whole, small, sound, and named after its target."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from examples.distill_draft.model import SIZES
from spec_compile.export.checkpoint import Checkpoint, open_checkpoint
from spec_compile.export.compact_draft import TOKEN_IDS, is_compact, weight_shapes

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "distill_draft" / "smollm2_draft"
MOST_BYTES = 12_000_000
VOCAB_SIZE, HIDDEN = 49_152, 576
END_OF_TURN, START_OF_TURN = 2, 1


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return open_checkpoint(str(FOLDER))


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    return load_file(FOLDER / "model.safetensors")


def test_it_is_a_card_a_config_and_weights_of_16_bits(weights: dict[str, Tensor]) -> None:
    files = sorted(path.name for path in FOLDER.iterdir())
    assert files == ["README.md", "config.json", "model.safetensors"]
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= MOST_BYTES
    types = {name: weight.dtype for name, weight in weights.items() if name != TOKEN_IDS}
    assert set(types.values()) == {torch.float16}


def test_it_is_a_compact_draft_whose_weights_fit_its_config(
    checkpoint: Checkpoint, weights: dict[str, Tensor]
) -> None:
    assert is_compact(checkpoint.config)
    assert {name: list(weight.shape) for name, weight in weights.items()} == weight_shapes(
        checkpoint.config
    )
    for name in ("hidden_size", "num_hidden_layers", "intermediate_size", "head_dim"):
        assert getattr(checkpoint.config, name) == SIZES[name]
    for name, weight in weights.items():
        assert weight.isfinite().all(), name
        assert weight.float().std() > 0, name


def test_it_names_the_target_it_was_trained_for(checkpoint: Checkpoint) -> None:
    config = checkpoint.config
    assert (config.vocab_size, config.target_hidden_size) == (VOCAB_SIZE, HIDDEN)
    for name in ("target_embedding_sha256", "target_tokenizer_sha256"):
        assert re.fullmatch(r"[0-9a-f]{64}", getattr(config, name))
    assert checkpoint.license == "apache-2.0"


def test_it_can_end_a_turn(checkpoint: Checkpoint, weights: dict[str, Tensor]) -> None:
    ids = weights[TOKEN_IDS].tolist()
    assert len(ids) == checkpoint.config.num_output_tokens == 8192
    assert ids == sorted(set(ids))
    assert {START_OF_TURN, END_OF_TURN} <= set(ids)
    assert max(ids) < VOCAB_SIZE
