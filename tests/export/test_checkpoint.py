"""Checkpoints as they are opened and loaded; what is refused stands in test_bad_input.py."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from spec_compile.errors import CheckpointError
from spec_compile.export.checkpoint import load_model, open_checkpoint
from spec_compile.presets import PRESETS
from tests.helpers.tiny_models import KINDS, save_tiny_model, tiny_model


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound checkpoint; do not change it."""
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    """A copy of the sound checkpoint, to be changed."""
    return Path(shutil.copytree(sound, tmp_path / "model"))


@pytest.mark.parametrize("kind", KINDS)
def test_weights_arrive_as_saved(kind: str, tmp_path: Path) -> None:
    loaded = load_model(open_checkpoint(str(save_tiny_model(tmp_path, kind))), torch.float32)
    expected = tiny_model(kind).state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    assert all(torch.equal(value, expected[key]) for key, value in loaded.state_dict().items())
    assert not loaded.training
    assert not any(weight.requires_grad for weight in loaded.parameters())


def test_half_precision_is_loaded_as_asked(folder: Path) -> None:
    weights = {key: value.half() for key, value in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    loaded = load_model(open_checkpoint(str(folder)), torch.float32)
    assert {weight.dtype for weight in loaded.parameters()} == {torch.float32}
    assert torch.equal(loaded.lm_head.weight, weights["lm_head.weight"].float())


def test_shards(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for shard, keys in parts.items():
        save_file({key: weights[key] for key in keys}, folder / shard, {"format": "pt"})
    shards = {key: shard for shard, keys in parts.items() for key in keys}
    index = {"metadata": {}, "weight_map": shards}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    loaded = load_model(open_checkpoint(str(folder)), torch.float32)
    assert all(torch.equal(value, weights[key]) for key, value in loaded.state_dict().items())


@pytest.mark.parametrize("preset", PRESETS)
def test_presets(preset: str) -> None:
    checkpoint = open_checkpoint(preset)
    assert checkpoint.name == checkpoint.source == preset
    assert checkpoint.folder == PRESETS[preset]
    assert checkpoint.eos_token_ids == (0,)


def test_a_path_is_told_by_its_last_part(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sound)
    assert [open_checkpoint(name).name for name in (str(sound), ".", "../tiny-llama/")] == [
        "tiny-llama"
    ] * 3


@pytest.mark.parametrize(
    "settings, eos, bos",
    [
        ('{"eos_token_id": [5, 7], "bos_token_id": 3}', (5, 7), 3),
        ('{"eos_token_id": 5}', (5,), None),
        ('{"eos_token_id": null}', (0,), None),
        ("{}", (0,), None),
        (None, (0,), None),
    ],
)
def test_generation_settings_come_first(
    settings: str | None, eos: tuple[int, ...], bos: int | None, folder: Path
) -> None:
    if settings is None:
        (folder / "generation_config.json").unlink()
    else:
        (folder / "generation_config.json").write_text(settings)
    checkpoint = open_checkpoint(str(folder))
    assert (checkpoint.eos_token_ids, checkpoint.bos_token_id) == (eos, bos)


def test_max_length_is_the_models(sound: Path, tmp_path: Path) -> None:
    assert open_checkpoint(str(sound)).max_length == 128
    other = save_tiny_model(tmp_path, "gpt2", n_positions=96)
    assert open_checkpoint(str(other)).max_length == 96


@pytest.mark.parametrize(
    "card, expected",
    [
        ("---\nlicense: apache-2.0\ntags: [x]\n---\n# Model\n", "apache-2.0"),
        ("---\ntags: [x]\n---\nlicense: mit\n", None),
        ("# Model\nlicense: mit\n", None),
        ("---\nlicense:\n---\n", None),
        ("---\nlicense: a\x1b[31mb\n---\n", "a?[31mb"),
        ("", None),
    ],
)
def test_license_is_what_the_header_of_the_card_says(
    card: str, expected: str | None, folder: Path
) -> None:
    (folder / "README.md").write_text(card)
    assert open_checkpoint(str(folder)).license == expected


def test_safetensors_win_over_pickles(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"not even a pickle")
    assert load_model(open_checkpoint(str(folder)), torch.float32).num_parameters() > 0


def test_every_missing_weight_is_counted(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    kept = {key: value for key, value in weights.items() if "layers.1.mlp" not in key}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    checkpoint = open_checkpoint(str(folder))
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.down_proj\.weight and 2 more"):
        load_model(checkpoint, torch.float32)


def test_a_path_is_as_good_as_a_text(sound: Path, tmp_path: Path) -> None:
    assert open_checkpoint(sound) == open_checkpoint(str(sound))
    with pytest.raises(CheckpointError, match="no model"):
        open_checkpoint(tmp_path / "nowhere")


def test_a_name_longer_than_any_path_is_refused() -> None:
    with pytest.raises(CheckpointError, match="no model"):
        open_checkpoint("a" * 5000)
