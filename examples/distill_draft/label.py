"""Let the target read text that exists, and store its law of every token: cheaper than generating.

    python -m examples.distill_draft.label smollm2-135m-instruct -o data --texts 2000

Reads modules of Python's standard library and documents of the system's packages, cut into pieces.
Go on by calling it again: pieces that are stored already are left out.
"""

from __future__ import annotations

import argparse
import logging
import random
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from examples.distill_draft.prompts import documents, held_out, sources
from examples.distill_draft.store import Text, read_shards, shard_names, write_shard
from examples.distill_draft.teacher import Teacher, top_law

PIECE, CONTEXT = 256, 16
TEXTS_PER_SHARD = 32
_LOG = logging.getLogger(__name__)


def pieces(tokenizer: Any) -> list[tuple[str, list[int]]]:
    """Every piece of PIECE tokens with the beginning of its source, in a fixed random order."""
    found = []
    for text in (*sources(), *documents()):
        ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
        name = text[:200]
        found += [(name, ids[i : i + PIECE]) for i in range(0, len(ids) - PIECE + 1, PIECE)]
    random.Random(0).shuffle(found)
    return found


def labelled(teacher: Teacher, number: int, name: str, tokens: list[int]) -> Text:
    """A piece with the teacher's law behind its first CONTEXT tokens."""
    zero = torch.zeros(1, dtype=torch.int64)
    hidden = teacher.forward(torch.tensor([tokens]), zero, zero)[0]
    ids, log_probs = top_law(teacher.logits(hidden[CONTEXT - 1 : -1]))
    return Text(
        number=number,
        kind="read",
        temperature=-1.0,
        is_held_out=held_out(name),
        start=CONTEXT,
        tokens=np.array(tokens, dtype=np.uint16),
        law_ids=ids.numpy().astype(np.uint16),
        law_log_probs=log_probs.numpy().astype(np.float16),
    )


def main() -> None:
    """Label until enough texts are stored."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", type=Path, help="checkpoint folder of the target")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the shards")
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(arguments.threads)
    folder: Path = arguments.output
    names = [name for name in shard_names(folder) if name.startswith("read-")]
    done = {text.number for text in read_shards(folder, names)}
    teacher = Teacher(arguments.target, 1, PIECE, torch.float32)
    numbered = enumerate(pieces(AutoTokenizer.from_pretrained(arguments.target)))
    wanted = ((n, *piece) for n, piece in islice(numbered, arguments.texts) if n not in done)
    _write(folder, (labelled(teacher, *each) for each in wanted))


def _write(folder: Path, texts: Iterator[Text]) -> None:
    began, count = time.monotonic(), 0
    while shard := list(islice(texts, TEXTS_PER_SHARD)):
        write_shard(folder, f"read-{shard[0].number:06d}", shard)
        count += sum(len(text.law_ids) for text in shard)
        _LOG.info("%d tokens, %.0f a second", count, count / (time.monotonic() - began))


if __name__ == "__main__":
    main()
