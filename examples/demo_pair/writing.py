"""Writing one model of the pair: a folder that is complete or not there."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from examples.demo_pair.models import MAX_POSITIONS
from examples.demo_pair.vocabulary import END_OF_TEXT, END_OF_TEXT_ID


def write_model(folder: Path, model: LlamaForCausalLM, tokenizer: Tokenizer, card: str) -> None:
    """Write config, float16 weights, tokenizer and card; replace what was there in one rename."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        _write_files(fresh, model, tokenizer, card)
        fresh.chmod(0o755)
        _replace(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def write_card(folder: Path, card: str) -> None:
    """Replace the model card of a written model."""
    fresh = folder / ".README.md"
    fresh.write_text(card, encoding="utf-8")
    fresh.replace(folder / "README.md")


def _write_files(folder: Path, model: LlamaForCausalLM, tokenizer: Tokenizer, card: str) -> None:
    config = model.config.to_dict()
    config.update(architectures=["LlamaForCausalLM"], dtype="float16")
    config.pop("_name_or_path", None)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"eos_token_id": END_OF_TEXT_ID})
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END_OF_TEXT,
            "model_max_length": MAX_POSITIONS,
            "clean_up_tokenization_spaces": False,
        },
    )
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    weights = {
        name: tensor.detach().to(torch.float16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    (folder / "README.md").write_text(card, encoding="utf-8")


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _replace(fresh: Path, folder: Path) -> None:
    """Move `fresh` to `folder`; what stood there is kept until the new one is in place."""
    if not folder.exists():
        fresh.rename(folder)
        return
    old = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-old-"))
    folder.rename(old / folder.name)
    fresh.rename(folder)
    shutil.rmtree(old)
