"""The model card of a draft, from what `train.py` and `evaluate.py` measured.

python -m examples.distill_draft.card run/figures.json figures.json -o run/best
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TEXT = """---
license: apache-2.0
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
---
# A draft for SmolLM2-135M-Instruct

A compact draft for `spec-compile`: 2 layers of width 256 over the target's own embeddings, a head
over 8,192 tokens, 3.8 million trained parameters in float16. It works with the one target whose
hashes `config.json` names, SmolLM2-135M-Instruct as `benchmarks/fetch_smollm2.py` writes it
(Apache-2.0, by Hugging Face), and is nothing without it. Made by `examples/distill_draft`.

## Training

{labels:,} labelled tokens: answers of the target itself (float32) to prompts made by
`examples/distill_draft/prompts.py`, at temperatures 0, 0.3, 0.7 and 1. {steps:,} steps of up to
1,024 labels; loss at the end {loss:.2f} (cross entropy to the target's 64 likeliest tokens, plus
the share of proposals that would be rejected).

## Acceptance on held-out prompts

One subject in sixteen was kept apart. On {held_labels:,} labelled tokens of held-out answers:
acceptance (the mean of sum min(draft, target) at temperature 1) and how often both have the same
best token, over all of them and over those written at temperature 1 and 0.

{table}

The target's law is known for its 64 likeliest tokens, so acceptance is a lower bound.

In real rounds (k = 4, {prompts} prompts of each kind, up to 128 new tokens): of the drafts at
each position that were reached, how many were kept.

{rounds}

## Cost

One row, k = 4, ONNX Runtime on CPU, float32, temperature 1, side by side on two busy cores: the
draft of a round {draft_ms_median} ms, the verify call {verify_ms_median} ms (medians);
{draft_ms_minimum} ms and {verify_ms_minimum} ms (minima).
"""


def card(trained: dict[str, Any], measured: dict[str, Any]) -> str:
    """The card's text.

    Args:
        trained: `figures.json` of a run.
        measured: what `evaluate.py` wrote, with `held_out`.
    """
    held = measured["held_out"]
    columns = {
        "acceptance": "acceptance",
        "same best token": "agreement",
        "acceptance, temperature 1": "acceptance_at_1",
        "same best token, temperature 0": "agreement_at_0",
    }
    table = [_row("prompts", columns), _row("---", ["---"] * len(columns))]
    for kind in ("chat", "code", "all"):
        table.append(_row(kind, [f"{held[kind][name]:.2f}" for name in columns.values()]))
    rounds = [_row("prompts", "1234", "tokens a round"), _row("---", ["---"] * 5)]
    for name, one in measured["rounds"].items():
        shares = [f"{share:.2f}" for share in one["kept_given_those_before"]]
        rounds.append(_row(name, shares, f"{one['tokens_per_round']:.2f}"))
    return TEXT.format(
        labels=trained["labels"],
        steps=trained["steps"],
        loss=trained["loss"],
        held_labels=held["all"]["labels"],
        table="\n".join(table),
        rounds="\n".join(rounds),
        prompts=measured["prompts"],
        **measured["cost"],
    )


def _row(first: str, cells: Iterable[str], *last: str) -> str:
    return f"| {' | '.join([first, *cells, *last])} |"


def main() -> None:
    """Write the card."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("trained", type=Path, help="figures.json of the run")
    parser.add_argument("measured", type=Path, help="what evaluate.py wrote")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the draft")
    arguments = parser.parse_args()
    trained, measured = (
        json.loads(path.read_text("utf-8")) for path in (arguments.trained, arguments.measured)
    )
    text = card(trained, measured)
    (arguments.output / "README.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
