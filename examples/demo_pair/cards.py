"""The model cards: what was trained on what, and how good it is."""

from __future__ import annotations

import sys

from examples.demo_pair.quality import Figures
from examples.demo_pair.training import Schedule

_CARD = """\
---
license: psf-2.0
---

# `{name}`: the demonstration {role} of spec-compile

{about}
It exists so that the first command works offline in seconds; it writes text that looks like
Python and knows nothing else.

- **Text:** the Python {version} standard library's own `.py` files (without tests and tables),
  {train_tokens:,} tokens in {train_files} files for training, {held_out_tokens:,} tokens in
  {held_out_files} files held out. sha256 of the text:
  `{corpus_sha256}`.
- **Licence:** PSF-2.0, that of the text (Copyright Python Software Foundation; all rights
  reserved), <https://docs.python.org/3/license.html>.
- **Parameters:** {parameters:,} (float16, tied embeddings, byte-level BPE of 2,048 ids, positions
  up to 1,024, trained on rows of {context} tokens).
- **Training:** {steps:,} steps of {batch:,} tokens, seed {seed}, by `examples/train_demo_pair.py`
  with its defaults{long}.

Measured on the held-out files by `benchmarks/demo_pair_quality.py`:

| nats per token | unigram | 5-gram (Kneser-Ney) | draft `small` | target `llama` |
|---|---|---|---|---|
| loss | {unigram_loss:.3f} | {five_gram_loss:.3f} | {draft_loss:.3f} | {target_loss:.3f} |

Acceptance at temperature 1, the mean of sum(min(draft, target)): {acceptance:.3f}. Greedy
agreement, how often both name the same most probable token: {greedy_agreement:.3f}.
"""

_ABOUT = {
    "target": "A small Llama model that learned to predict the next token.",
    "draft": "A one-layer Llama model, distilled from `llama`, that drafts for it.",
}


def model_card(name: str, role: str, schedule: Schedule, figures: Figures) -> str:
    """The README of one folder; `role` is target or draft."""
    long = f", the last {schedule.long_share:.0%} on rows twice as long"
    return _CARD.format(
        name=name,
        role=role,
        about=_ABOUT[role],
        version=".".join(str(part) for part in sys.version_info[:3]),
        parameters=figures[f"{role}_parameters"],
        context=schedule.context,
        steps=schedule.steps,
        batch=schedule.rows * schedule.context,
        seed=schedule.seed,
        long=long if schedule.long_share else "",
        **figures,
    )
