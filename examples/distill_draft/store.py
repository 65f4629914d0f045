"""Labelled texts on disk: token ids and the teacher's law of each labelled token, in shards."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Text:
    """A text whose tokens from `start` on are labelled.

    Args:
        number: of its prompt; -1 for text that the teacher only read.
        kind: of its prompt, or `read`.
        temperature: that it was generated at; -1 for text that the teacher only read.
        is_held_out: whether it may not be trained on.
        start: tokens before the first labelled one.
        tokens: [n] uint16.
        law_ids: [n - start, 64] uint16, the likeliest tokens at each labelled place.
        law_log_probs: [n - start, 64] float16.
    """

    number: int
    kind: str
    temperature: float
    is_held_out: bool
    start: int
    tokens: NDArray[np.uint16]
    law_ids: NDArray[np.uint16]
    law_log_probs: NDArray[np.float16]


def write_shard(folder: Path, name: str, texts: list[Text]) -> None:
    """Write texts as `name`.npz; it appears whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    about = [
        [text.number, text.kind, text.temperature, text.is_held_out, text.start, len(text.tokens)]
        for text in texts
    ]
    partial = folder / f".{name}.npz"
    with partial.open("wb") as file:
        np.savez(
            file,
            about=np.frombuffer(json.dumps(about).encode(), dtype=np.uint8),
            tokens=np.concatenate([text.tokens for text in texts]),
            law_ids=np.concatenate([text.law_ids for text in texts]),
            law_log_probs=np.concatenate([text.law_log_probs for text in texts]),
        )
    partial.rename(folder / f"{name}.npz")


def shard_names(folder: Path) -> list[str]:
    """The shards that are complete, in order."""
    return sorted(path.stem for path in folder.glob("[!.]*.npz"))


def read_shards(folder: Path, names: Iterable[str]) -> Iterator[Text]:
    """The texts of some shards."""
    for name in names:
        with np.load(folder / f"{name}.npz", allow_pickle=False) as arrays:
            data = {key: arrays[key] for key in arrays.files}
        place = labelled = 0
        for number, kind, temperature, is_held_out, start, length in json.loads(
            data["about"].tobytes()
        ):
            tokens = data["tokens"][place : place + length]
            span = slice(labelled, labelled + length - start)
            place, labelled = place + length, span.stop
            laws = data["law_ids"][span], data["law_log_probs"][span]
            yield Text(number, kind, temperature, is_held_out, start, tokens, *laws)
