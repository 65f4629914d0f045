"""Print every reported figure of the demonstration pair, computed from the shipped files.

Losses are nats per token on the held-out files of the running interpreter's standard library.
Another Python version has other text: `corpus_sha256` in the model cards says which text it was.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from transformers.utils.logging import disable_progress_bar

from examples.demo_pair.quality import measure_pair
from spec_compile.presets import PRESETS


def main() -> None:
    """Measure the pair and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", type=Path, default=PRESETS["llama"])
    parser.add_argument("--draft", type=Path, default=PRESETS["small"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    disable_progress_bar()  # type: ignore[no-untyped-call]
    figures = measure_pair(arguments.target, arguments.draft)
    if arguments.json:
        print(json.dumps(figures, indent=2))
        return
    for name, value in figures.items():
        print(f"{name:<20} {value:,}" if not isinstance(value, str) else f"{name:<20} {value}")


if __name__ == "__main__":
    main()
