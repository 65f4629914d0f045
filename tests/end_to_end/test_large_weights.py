"""A model whose weights do not fit into one protobuf file, which ends at 2 GB."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from spec_compile.config import SpecConfig
from spec_compile.driver import compile as compile_pair
from spec_compile.runtime.api import load

VOCAB_SIZE = 140_000
PROMPT = [5, VOCAB_SIZE - 1, 70_000]
TWO_GIGABYTES = 2 * 1024**3


def save_model(folder: Path, hidden_size: int, seed: int) -> Path:
    """One layer under a tied head of `hidden_size` x 140,000, in bfloat16."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=hidden_size,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        head_dim=16,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_external_data_over_two_gigabytes(tmp_path: Path) -> None:
    target = save_model(tmp_path / "target", 4096, seed=0)
    draft = save_model(tmp_path / "draft", 32, seed=1)
    config = SpecConfig(num_speculative_tokens=2, max_length=24, batch_size=2)
    compile_pair(str(target), str(draft), tmp_path / "built", config)
    moved = (tmp_path / "built").rename(tmp_path / "moved")
    sizes = {path.name: path.stat().st_size for path in moved.iterdir()}
    assert sizes["target.weights"] > TWO_GIGABYTES
    assert max(size for name, size in sizes.items() if name.endswith(".onnx")) < TWO_GIGABYTES
    decoder = load(moved, num_threads=1)
    result = decoder.generate(PROMPT, max_new_tokens=6, temperature=0.0, ignore_eos=True)
    reference = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32)
    ids = torch.tensor([PROMPT])
    wanted = reference.generate(ids, do_sample=False, max_new_tokens=6, min_new_tokens=6)
    assert list(result.token_ids) == wanted[0, len(PROMPT) :].tolist()
    assert result.stats.num_rounds > 1
