"""The shipped pair is real: it loads, it shares one tokenizer, it is small, it has learned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, PreTrainedModel

from spec_compile.presets import PRESETS, resolve_preset

MEGABYTE = 1_000_000
FILES = (
    "README.md",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)
UNSEEN = '''"""Keep the readings of a weather station and summarise them."""

import os
import time


class Station:
    """A place where temperature and wind are read.

    Readings are kept in the order in which they arrived.
    """

    def __init__(self, name, limit=None):
        self.name = name
        self.limit = limit
        self._readings = []

    def add(self, value, when=None):
        """Add one reading; the time is now when it is not given."""
        if value is None:
            raise ValueError("value must not be None")
        if when is None:
            when = time.time()
        self._readings.append((when, value))
        if self.limit is not None and len(self._readings) > self.limit:
            del self._readings[0]

    def mean(self):
        if not self._readings:
            return 0.0
        return sum(value for when, value in self._readings) / len(self._readings)

    def __len__(self):
        return len(self._readings)

    def __repr__(self):
        return "%s(%r, limit=%r)" % (self.__class__.__name__, self.name, self.limit)


def load(path):
    """Read a station from the file at path."""
    station = Station(os.path.basename(path))
    with open(path, encoding="utf-8") as f:
        for line in f:
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            when, value = line.split(",", 1)
            station.add(float(value), float(when))
    return station
'''


@pytest.fixture(scope="module")
def models() -> dict[str, PreTrainedModel]:
    return {name: _load(folder) for name, folder in PRESETS.items()}


@pytest.fixture(scope="module")
def sample() -> torch.Tensor:
    """Token ids [1, T] of `UNSEEN`, code that is no part of the text the models learned from."""
    tokenizer = Tokenizer.from_file(str(PRESETS["llama"] / "tokenizer.json"))
    return torch.tensor([tokenizer.encode(UNSEEN).ids])


def test_presets_name_complete_folders() -> None:
    assert set(PRESETS) == {"llama", "small"}
    for name, folder in PRESETS.items():
        assert resolve_preset(name) == folder
        assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)


def test_unknown_preset_is_none() -> None:
    assert resolve_preset("tiny") is None


def test_files_stay_small() -> None:
    sizes = [path.stat().st_size for folder in PRESETS.values() for path in folder.iterdir()]
    assert sum(sizes) <= 6 * MEGABYTE


def test_both_have_one_tokenizer() -> None:
    first, second = (folder / "tokenizer.json" for folder in PRESETS.values())
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_model_is_a_16_bit_llama(name: str, models: dict[str, PreTrainedModel]) -> None:
    config = json.loads((PRESETS[name] / "config.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(PRESETS[name])
    assert isinstance(models[name], LlamaForCausalLM)
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["dtype"] == "float16"
    assert config["tie_word_embeddings"]
    assert config["max_position_embeddings"] >= 1024
    assert config["vocab_size"] == len(tokenizer)
    assert config["eos_token_id"] == tokenizer.eos_token_id == 0


def test_draft_has_one_layer() -> None:
    assert json.loads((PRESETS["small"] / "config.json").read_text())["num_hidden_layers"] == 1


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_tokenizer_round_trips(text: str) -> None:
    tokenizer = Tokenizer.from_file(str(PRESETS["small"] / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_model_beats_a_unigram_of_the_sample_itself(
    name: str, models: dict[str, PreTrainedModel], sample: torch.Tensor
) -> None:
    counts = torch.bincount(sample.flatten()).float()
    unigram_entropy = -torch.xlogy(counts, counts / counts.sum()).sum() / counts.sum()
    with torch.inference_mode():
        loss = models[name](input_ids=sample, labels=sample).loss
    assert loss < 0.75 * unigram_entropy


def test_draft_follows_the_target(models: dict[str, PreTrainedModel], sample: torch.Tensor) -> None:
    with torch.inference_mode():
        laws = {name: model(input_ids=sample).logits.softmax(-1) for name, model in models.items()}
    overlap = torch.minimum(laws["llama"], laws["small"]).sum(-1).mean()
    assert overlap > 0.5


def _load(folder: Path) -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert isinstance(model, PreTrainedModel)
    model.train(False)
    return model
