"""Tiny random pairs, compiled once per session, and what their target says without us."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from spec_compile.config import SpecConfig
from spec_compile.driver import compile as compile_pair
from spec_compile.runtime.api import Decoder, load
from tests.helpers.captured import eager_logits
from tests.helpers.tiny_models import save_tiny_model, tiny_model, tokens, write_tokenizer

V = len(tokens())
MAX_LENGTH = 24
TARGET_SEED = 3
Folders = Callable[[str], Path]
Bundles = Callable[[str, SpecConfig], Decoder]


def _save_draft(kind: str, target: PreTrainedModel, folder: Path) -> None:
    if kind == "random":
        # Its head and embedding are padded to another size than the target's.
        save_tiny_model(folder, "qwen2", seed=8, num_hidden_layers=1, vocab_size=72)
    elif kind == "short":
        # Its head lacks the last ids that the tokenizer knows.
        save_tiny_model(folder, "gpt2", seed=9, n_layer=1, vocab_size=V - 3)
    else:
        head = target.lm_head.weight.data
        if kind == "wrong":
            # Its best token is always the one after the target's; it is padded to another size.
            head[:V] = head[:V].roll(1, dims=0)
            target.resize_token_embeddings(72, mean_resizing=False)
        elif kind == "good":
            noise = torch.randn(head.shape, generator=torch.Generator().manual_seed(4))
            head += 0.15 * noise
        else:
            assert kind == "self"
        target.save_pretrained(folder)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """`folders(kind)`: a checkpoint with tokenizer: `target`, or a draft `self`, `good`, ..."""

    @cache
    def save(kind: str) -> Path:
        folder = tmp_path_factory.mktemp("models") / kind
        target = tiny_model("llama", seed=TARGET_SEED)
        if kind == "target":
            target.save_pretrained(folder)
        else:
            _save_draft(kind, target, folder)
        write_tokenizer(folder)
        return folder

    return save


@pytest.fixture(scope="session")
def bundles(folders: Folders, tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    """`bundles(draft, config)`: the decoder of the target with that draft, on one thread."""

    @cache
    def build(draft: str, config: SpecConfig) -> Decoder:
        output = tmp_path_factory.mktemp("bundles") / "bundle"
        compile_pair(str(folders("target")), str(folders(draft)), output, config)
        return load(output, num_threads=1)

    return build


@pytest.fixture(scope="session")
def reference(folders: Folders) -> PreTrainedModel:
    """The target as transformers loads it."""
    return AutoModelForCausalLM.from_pretrained(folders("target"), attn_implementation="eager")


def greedy(model: PreTrainedModel, prompt: Sequence[int], num_tokens: int) -> tuple[int, ...]:
    """`num_tokens` of transformers' own greedy decoding, by whole forwards, over V ids."""
    committed = list(prompt)
    for _ in range(num_tokens):
        committed.append(int(eager_logits(model, committed)[-1, :V].argmax()))
    return tuple(committed[len(prompt) :])
