"""Train the demonstration pair: `llama` (target) and `small` (draft) on Python's own library.

The defaults are what produced the files in `spec_compile/assets`:

    python examples/train_demo_pair.py --output assets
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from tokenizers import Tokenizer

from examples.demo_pair.cards import model_card
from examples.demo_pair.corpus import read_corpus
from examples.demo_pair.models import draft_config, load_model, new_model, target_config
from examples.demo_pair.quality import measure_pair
from examples.demo_pair.training import Schedule, train_draft, train_target
from examples.demo_pair.vocabulary import TokenStream, encode_stream, train_tokenizer
from examples.demo_pair.writing import write_card, write_model

TARGET, DRAFT = "llama", "small"
TARGET_SCHEDULE = Schedule(steps=1280, save_every=320)
DRAFT_SCHEDULE = Schedule(steps=1500, rows=4, other_rate=0.015)
PENDING_CARD = "Training is not finished.\n"


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="folder for llama/ and small/")
    parser.add_argument("--part", choices=("both", "target", "draft"), default="both")
    parser.add_argument("--steps", type=int, default=TARGET_SCHEDULE.steps)
    parser.add_argument("--draft-steps", type=int, default=DRAFT_SCHEDULE.steps)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="speed the steps up with torch.compile (needs a C++ compiler)",
    )
    return parser.parse_args()


def make_target(folder: Path, tokenizer: Tokenizer, text: TokenStream, schedule: Schedule) -> None:
    """Train the target and store it."""
    model = new_model(target_config(), schedule.seed)
    save = partial(write_model, folder, model, tokenizer, PENDING_CARD)
    train_target(model, text, schedule, save)


def make_draft(
    folder: Path, target: Path, tokenizer: Tokenizer, text: TokenStream, schedule: Schedule
) -> None:
    """Distil the draft from the stored target and store it."""
    model = new_model(draft_config(), schedule.seed)
    save = partial(write_model, folder, model, tokenizer, PENDING_CARD)
    train_draft(model, load_model(target), text, schedule, save)


def main() -> None:
    """Train what was asked for, measure the pair, write the cards."""
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    shared = {"seed": arguments.seed, "compiled": arguments.compile}
    target_schedule = replace(TARGET_SCHEDULE, steps=arguments.steps, **shared)
    draft_schedule = replace(DRAFT_SCHEDULE, steps=arguments.draft_steps, **shared)
    target, draft = arguments.output / TARGET, arguments.output / DRAFT

    corpus = read_corpus()
    tokenizer = train_tokenizer(corpus.train)
    text = encode_stream(tokenizer, corpus.train)
    if arguments.part != "draft":
        make_target(target, tokenizer, text, target_schedule)
    if arguments.part != "target":
        make_draft(draft, target, tokenizer, text, draft_schedule)
        figures = measure_pair(target, draft)
        write_card(target, model_card(TARGET, "target", target_schedule, figures))
        write_card(draft, model_card(DRAFT, "draft", draft_schedule, figures))
        print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
