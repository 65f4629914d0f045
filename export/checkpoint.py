"""A model named by the user to a checked checkpoint, and a checkpoint to a model in memory."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

from spec_compile.errors import CaptureError, CheckpointError
from spec_compile.export.seams import IMPLEMENTATION
from spec_compile.export.spec_drafter_graphs import SpecDrafterConfig
from spec_compile.json_fields import is_plain
from spec_compile.presets import PRESETS, resolve_preset
from spec_compile.program import first_line

_LONGEST_REASON = 300
_INDEX = "model.safetensors.index.json"
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "README.md", "LICENSE*")


@dataclass(frozen=True)
class Checkpoint:
    """A model folder that has been looked at.

    Args:
        source: the name that the user gave.
        folder: where the files are.
        config: the parsed `config.json`.
        eos_token_ids: ids that end a text, from `generation_config.json`, else from `config.json`.
        bos_token_id: the id that begins a text, or None.
        decoder_start_ids: what the decoder of an encoder-decoder model begins every output with;
            empty for a model without an encoder.
    """

    source: str
    folder: Path
    config: Any
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    decoder_start_ids: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """What a bundle calls the model: of a local path, only the end."""
        return _plain(self.folder.resolve().name if Path(self.source).is_dir() else self.source)

    @property
    def max_length(self) -> int | None:
        """Positions that the model was built for, or None when its config does not say."""
        found = getattr(self.config.get_text_config(), "max_position_embeddings", None)
        return found if isinstance(found, int) else None

    @property
    def license(self) -> str | None:
        """The licence that the model card's header names, or None."""
        card = self.folder / "README.md"
        header = card.read_text("utf-8", "replace").split("---") if card.is_file() else []
        if len(header) < 3 or header[0].strip():
            return None
        lines = [line for line in header[1].splitlines() if line.startswith("license:")]
        return _plain(lines[0].removeprefix("license:").strip()) or None if lines else None


def open_checkpoint(source: str | os.PathLike[str]) -> Checkpoint:
    """Find and check a model: a preset, a local folder, or a hub id.

    Raises:
        CheckpointError: not found, no `config.json`, or no sound safetensors weights.
    """
    source = os.fspath(source)
    folder = _find(source)
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            f"{folder} has no config.json; give the folder of a Hugging Face model"
        )
    _check_weights(folder)
    config = _read_config(folder)
    layers = getattr(config.get_text_config(), "num_hidden_layers", None)
    if not isinstance(layers, int) or layers < 1:
        raise CheckpointError(f"{folder}/config.json: num_hidden_layers is {layers!r}")
    eos, bos = (_token_ids(folder, config, name) for name in ("eos_token_id", "bos_token_id"))
    reads = is_seq2seq(config) and not is_drafter(config)
    starts = _decoder_start_ids(folder, config, bos) if reads else ()
    return Checkpoint(source, folder, config, eos, next(iter(bos), None), starts)


def _decoder_start_ids(folder: Path, config: Any, bos: tuple[int, ...]) -> tuple[int, ...]:
    """What `transformers` begins an output with: a start, and a first token that is forced."""
    start = _token_ids(folder, config, "decoder_start_token_id") or bos
    if not start:
        raise CheckpointError(
            f"{folder}/config.json: an encoder-decoder model needs a decoder_start_token_id"
        )
    return (*start[:1], *_token_ids(folder, config, "forced_bos_token_id")[:1])


def is_seq2seq(config: Any) -> bool:
    """Whether a model has an encoder and a decoder."""
    return is_drafter(config) or bool(getattr(config, "is_encoder_decoder", False))


def is_drafter(config: Any) -> bool:
    """Whether this is the configuration of a Spec-Drafter."""
    return isinstance(config, SpecDrafterConfig)


def load_model(checkpoint: Checkpoint, dtype: torch.dtype) -> PreTrainedModel:
    """The model in evaluation mode on the CPU, ready to be captured.

    Raises:
        CheckpointError: the weights do not fit the configuration.
        CaptureError: its attention cannot be replaced.
    """
    with _quiet():
        try:
            kind = AutoModelForSeq2SeqLM if is_seq2seq(checkpoint.config) else AutoModelForCausalLM
            loaded: Any = kind.from_pretrained(
                checkpoint.folder,
                config=checkpoint.config,
                dtype=dtype,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
                # Reported below, in words of our own.
                ignore_mismatched_sizes=True,
            )
        except Exception as error:
            raise CheckpointError(f"cannot load {checkpoint.folder}: {_told(error)}") from error
        model: PreTrainedModel = loaded[0]
        _check_loaded(checkpoint.folder, model, loaded[1])
        prepare(model)
    return model


def prepare(model: PreTrainedModel) -> None:
    """Make a loaded model ready to be captured.

    Raises:
        CaptureError: its attention cannot be replaced.
    """
    _use_our_attention(model)
    model.train(False)
    model.requires_grad_(False)


def _use_our_attention(model: PreTrainedModel) -> None:
    name = type(model).__name__
    if getattr(model, "_is_stateful", False):
        raise CaptureError(
            f"{name} carries a recurrent state, which cannot be rolled back after a rejection; "
            "only models that keep all they know in keys and values compile"
        )
    # Without this, transformers takes the name of our attention and goes on with the model's own.
    # Encoder-decoder models do not say it; their capture sees which layers come to the interface.
    says = is_seq2seq(model.config) or getattr(model, "_supports_attention_backend", True)
    if not says:
        raise CaptureError(
            f"{name} computes attention in code of its own, not through the attention interface of "
            "transformers, so it cannot be captured"
        )
    try:
        model.set_attn_implementation(IMPLEMENTATION)
    except Exception as error:
        raise CaptureError(f"{name} does not take another attention: {_told(error)}") from error


def _check_loaded(folder: Path, model: PreTrainedModel, report: dict[str, Any]) -> None:
    """Refuse weights that are missing, of other sizes than configured, or not numbers."""
    missing = sorted(str(key) for key in report["missing_keys"])
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(f"{folder} lacks the weight {missing[0]}{more}")
    for key, stored, wanted in sorted(report["mismatched_keys"]):
        raise CheckpointError(
            f"{folder}: the weight {key} has shape {list(stored)}, config.json says {list(wanted)}"
        )
    for key, weight in model.named_parameters():
        # A sum, because it needs no second array of the weight's size.
        if not weight.sum().isfinite():
            raise CheckpointError(f"{folder}: the weight {key} holds NaN or infinity")


def _read_config(folder: Path) -> Any:
    raw = read_json(folder / "config.json")
    with _quiet():
        try:
            return AutoConfig.from_pretrained(
                folder, trust_remote_code=False, local_files_only=True
            )
        except Exception as error:
            if "auto_map" in raw:
                raise CheckpointError(
                    f"{folder} needs code that comes with the checkpoint, which is never run here; "
                    "only architectures that transformers knows compile"
                ) from error
            raise CheckpointError(f"{folder}/config.json: {_told(error)}") from error


def _told(error: Exception) -> str:
    """An error of a library in one line of bearable length."""
    line = first_line(error)
    if line.endswith(":"):
        line = " ".join(str(error).split())
    return line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]}..."


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        CheckpointError: not JSON, or not an object.
    """
    try:
        value = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {first_line(error)}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} does not hold a JSON object")
    return value


def _token_ids(folder: Path, config: Any, name: str) -> tuple[int, ...]:
    path = folder / "generation_config.json"
    found = read_json(path).get(name) if path.is_file() else None
    if found is None:
        found = getattr(config.get_text_config(), name, None)
    ids = found if isinstance(found, list) else [] if found is None else [found]
    if not all(type(index) is int for index in ids):
        raise CheckpointError(f"{folder} has {name} {found!r}, which is no token id")
    return tuple(ids)


def _plain(text: str) -> str:
    """`text` as a manifest takes it, without what no terminal shows."""
    return "".join(char if is_plain(char) else "?" for char in text)


def _find(source: str) -> Path:
    preset = resolve_preset(source)
    if preset is not None:
        return preset
    path = Path(source)
    try:
        is_folder, exists = path.is_dir(), path.exists()
    except OSError as error:
        raise CheckpointError(f"no model {source[:80]!r}: {error.strerror}") from error
    if is_folder:
        return path
    if exists:
        raise CheckpointError(f"{source} is a file; give the folder of a Hugging Face model")
    if source.count("/") != 1 or source.startswith((".", "/", "~")):
        raise CheckpointError(
            f"no model {source!r}: not a folder here, not one of the presets "
            f"{', '.join(PRESETS)}, and not a hub id such as owner/name"
        )
    return _download(source)


def _download(source: str) -> Path:
    # Imported here: a local compile needs no hub client.
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source, allow_patterns=list(_HUB_FILES)))
    except Exception as error:
        raise CheckpointError(
            f"no folder {source!r} here, and the hub did not give it ({first_line(error)}); "
            "check the name and the network, or give a local folder"
        ) from error


def _check_weights(folder: Path) -> None:
    for path in _weight_files(folder):
        if not path.is_file():
            raise CheckpointError(f"{folder} lacks {path.name}, which its weight index names")
        try:
            with safe_open(path, framework="numpy") as weights:
                weights.keys()
        except Exception as error:
            raise CheckpointError(
                f"{path} is damaged or cut short ({first_line(error)}); download it again"
            ) from error


def _weight_files(folder: Path) -> Iterator[Path]:
    if (folder / _INDEX).is_file():
        names = read_json(folder / _INDEX).get("weight_map")
        if not isinstance(names, dict) or not names:
            raise CheckpointError(f"{folder / _INDEX} has no weight_map")
        yield from (_inside(folder, str(name)) for name in sorted(set(names.values())))
        return
    if (folder / "model.safetensors").is_file():
        yield folder / "model.safetensors"
        return
    pickled = [path.name for pattern in _PICKLED for path in folder.glob(pattern)]
    if pickled:
        raise CheckpointError(
            f"{folder} has pickled weights only ({pickled[0]}), which can run code when loaded; "
            "convert them to safetensors"
        )
    raise CheckpointError(f"{folder} has no model.safetensors")


def _inside(folder: Path, name: str) -> Path:
    if Path(name).name != name:
        raise CheckpointError(f"{folder / _INDEX} names {name!r}, which is not a file beside it")
    return folder / name


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep notices and bars of transformers away from our user; errors are raised anyway."""
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logger = logging.getLogger("transformers")
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = disabled
        transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
        transformers_logging.set_verbosity(verbosity)
