"""Encoded pairs, and batches of pairs of about one length."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from examples.specdec.vocabulary import LONGEST, PAD_ID

POOLED_BATCHES = 40  # batches that are sorted by length together
STEP = 8  # widths and rows of a batch are multiples: few shapes, for which kernels are made once
IGNORED = -100


@dataclass(frozen=True)
class Pair:
    """One source text and the text to learn, both as tokens that end with `</s>`."""

    source: Sequence[int]
    target: Sequence[int]


@dataclass(frozen=True)
class Batch:
    """Rows of pairs, padded: source [B, S], source_lengths [B], target [B, T], lengths [B]."""

    source: Tensor
    source_lengths: Tensor
    target: Tensor
    lengths: Tensor

    @property
    def source_mask(self) -> Tensor:
        """[B, S], 1 where a source token is real."""
        return mask_of(self.source_lengths, self.source.shape[1]).long()

    @property
    def labels(self) -> Tensor:
        """[B, T], the target with -100 in the padding."""
        inside = mask_of(self.lengths, self.target.shape[1])
        return self.target.masked_fill(~inside, IGNORED)


def mask_of(lengths: Tensor, width: int) -> Tensor:
    """[B] to [B, width]: True in the first lengths[b] places of row b."""
    return torch.arange(width) < lengths[:, None]


def read_text(path: Path) -> list[tuple[str, str]]:
    """Pairs of a tab-separated file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [(english, german) for english, german in (line.split("\t") for line in lines)]


def read_pairs(path: Path, tokenizer: Tokenizer) -> list[Pair]:
    """Encode the pairs of a tab-separated file; those longer than a model takes are left out."""
    text = read_text(path)
    sources = tokenizer.encode_batch_fast([english for english, _ in text])
    targets = tokenizer.encode_batch_fast([german for _, german in text])
    pairs = []
    for source, target in zip(sources, targets, strict=True):
        if max(len(source.ids), len(target.ids)) <= LONGEST:
            pairs.append(Pair(array("H", source.ids), array("H", target.ids)))
    return pairs


def padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Token rows as [B, W], W a multiple of 8, and their lengths [B]."""
    lengths = torch.tensor([len(row) for row in rows])
    table = torch.full((len(rows), stepped(int(lengths.max()))), PAD_ID)
    for place, row in enumerate(rows):
        table[place, : len(row)] = torch.tensor(list(row))
    return table, lengths


def stepped(width: int) -> int:
    """The next multiple of 8."""
    return -(-width // STEP) * STEP


def make_batch(pairs: Sequence[Pair]) -> Batch:
    """Pad some pairs to one batch."""
    return Batch(*padded([pair.source for pair in pairs]), *padded([pair.target for pair in pairs]))


def batches(pairs: Sequence[Pair], tokens: int, generator: np.random.Generator) -> Iterator[Batch]:
    """Endless batches of at most about `tokens` target places, in a random order."""
    while True:
        order = generator.permutation(len(pairs))
        for chunks in _pools(pairs, order.tolist(), tokens):
            generator.shuffle(chunks)
            for chunk in chunks:
                yield make_batch([pairs[index] for index in chunk])


def _pools(pairs: Sequence[Pair], order: list[int], tokens: int) -> Iterator[list[list[int]]]:
    mean = sum(len(pair.target) for pair in pairs) / len(pairs)
    pool = max(1, int(POOLED_BATCHES * tokens / mean))
    for start in range(0, len(order), pool):
        by_length = sorted(
            order[start : start + pool],
            key=lambda index: (len(pairs[index].target), len(pairs[index].source)),
        )
        yield split_by_tokens(pairs, by_length, tokens)


def split_by_tokens(pairs: Sequence[Pair], order: list[int], tokens: int) -> list[list[int]]:
    """Cut an order of growing length where rows times padded width would exceed `tokens`.

    A cut chunk has a multiple of 8 rows, if it has so many.
    """
    chunks: list[list[int]] = [[]]
    for index in order:
        width = stepped(len(pairs[index].target))
        if chunks[-1] and (len(chunks[-1]) + 1) * width > tokens:
            chunk = chunks[-1]
            over = len(chunk) % STEP if len(chunk) > STEP else 0
            kept = len(chunk) - over
            chunks[-1:] = [chunk[:kept], chunk[kept:]]
        chunks[-1].append(index)
    return chunks
