"""Make a draft checkpoint of a model's own first layers, for measurements that need some draft.

Embeddings, final norm, head and tokenizer stay as they are; nothing is trained, so acceptance is
poor. What such a pair shows is correctness and the cost of a round.

    pip install -e '.[compile]' -c constraints.txt
    python benchmarks/make_layer_cut.py smollm2-135m-instruct --layers 6 -o smollm2-6layers
"""

from __future__ import annotations

import argparse
import logging
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

COPIED = ("tokenizer*", "*.jinja", "special_tokens_map.json", "vocab.*", "merges.txt", "LICENSE*")


def main() -> None:
    """Parse the command line and write the shorter checkpoint."""
    parser = argparse.ArgumentParser(description="Write a model's first layers as a checkpoint.")
    parser.add_argument("model", type=Path, help="Hugging Face folder with safetensors")
    parser.add_argument("--layers", type=int, default=6, help="how many layers stay (default 6)")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    if not (arguments.model / "config.json").is_file():
        parser.exit(1, f"{arguments.model} is no Hugging Face folder: it has no config.json\n")
    if arguments.output.exists():
        parser.exit(1, f"{arguments.output} exists: choose another -o or remove it first\n")
    model = load_first_layers(arguments.model, arguments.layers)
    write_folder(model, arguments.model, arguments.output)
    print(f"{arguments.output}: {arguments.layers} layers, {model.num_parameters():,} parameters")


def load_first_layers(folder: Path, num_layers: int) -> PreTrainedModel:
    """Return the model of `folder` with its first `num_layers` layers, in the type it is stored in.

    Raises:
        SystemExit: the model has no more than `num_layers` layers.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    if not 0 < num_layers < config.num_hidden_layers:
        raise SystemExit(f"--layers {num_layers}: {folder} has {config.num_hidden_layers} layers")
    config.num_hidden_layers = num_layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:num_layers]
    logging.getLogger("transformers").setLevel("ERROR")  # it names every weight it leaves out
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype="auto", use_safetensors=True
    )
    return model


def write_folder(model: PreTrainedModel, source: Path, output: Path) -> None:
    """Write everything beside `output` and rename it: the folder appears whole or not at all."""
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    try:
        model.save_pretrained(partial)
        for file in (file for pattern in COPIED for file in source.glob(pattern)):
            shutil.copyfile(file, partial / file.name)
        write_card(source, partial, model.config.num_hidden_layers)
        partial.chmod(0o755)
        partial.rename(output)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def write_card(source: Path, output: Path, num_layers: int) -> None:
    """Write a model card: the source's own (it names the licence) and what was done to it."""
    card = source / "README.md"
    text = card.read_text(encoding="utf-8") if card.is_file() else ""
    note = f"Cut to the first {num_layers} layers of {source.name}; not trained further.\n"
    (output / "README.md").write_text(f"{text}\n{note}".lstrip(), encoding="utf-8")


if __name__ == "__main__":
    main()
