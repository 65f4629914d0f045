"""Labelled texts as training batches: tokens, places that have a label, the teacher's law there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from examples.distill_draft.store import Text

PRIOR_SHARE = 0.02


@dataclass(frozen=True)
class Batch:
    """A few texts.

    Args:
        tokens: [B, T] int64, padded on the right.
        rows: [L] int64, which text each label belongs to.
        places: [L] int64, the token behind which it stands.
        law: [L, 64], the teacher's probabilities.
        law_index: [L, 64] int64, the draft's index of each token of the law; N where it has none.
        law_ids: [L, 64] int64, the tokens.
    """

    tokens: Tensor
    rows: Tensor
    places: Tensor
    law: Tensor
    law_index: Tensor
    law_ids: Tensor


def make_batch(texts: Sequence[Text], inverse: Tensor) -> Batch:
    """A batch of `texts`; `inverse` [V] maps a token to the draft's index, or to N."""
    tokens = torch.zeros(len(texts), max(len(text.tokens) for text in texts), dtype=torch.int64)
    rows, places = [], []
    for row, text in enumerate(texts):
        tokens[row, : len(text.tokens)] = torch.from_numpy(text.tokens.astype(np.int64))
        rows.append(torch.full((len(text.law_ids),), row))
        places.append(torch.arange(text.start - 1, len(text.tokens) - 1))
    ids = torch.from_numpy(np.concatenate([text.law_ids for text in texts]).astype(np.int64))
    log_probs = np.concatenate([text.law_log_probs for text in texts]).astype(np.float32)
    law = torch.from_numpy(log_probs).exp()
    return Batch(tokens, torch.cat(rows), torch.cat(places), law, inverse[ids], ids)


def shuffled(texts: Sequence[Text], labels: int, seed: int) -> Iterator[list[Text]]:
    """One pass over `texts` in groups of about `labels` labels, texts of like length together."""
    random = np.random.default_rng(seed)
    order = sorted(range(len(texts)), key=lambda i: len(texts[i].tokens) + random.uniform(0, 60))
    groups, size = [list[Text]()], 0
    for index in order:
        groups[-1].append(texts[index])
        size += len(texts[index].law_ids)
        if size >= labels:
            groups.append([])
            size = 0
    groups = [group for group in groups if group]
    for index in random.permutation(len(groups)):
        yield groups[index]


def token_frequency(texts: Sequence[Text], vocab_size: int) -> Tensor:
    """How likely each token is to the teacher over `texts`: [V] float32, summing to 1.

    Counts probability, not tokens: a small sample then says more of rare tokens. What it does not
    know at all is ranked by id, because a tokenizer learns its most frequent merges first.
    """
    mass = np.zeros(vocab_size)
    for text in texts:
        np.add.at(mass, text.law_ids.ravel(), np.exp(text.law_log_probs.ravel(), dtype=np.float32))
    prior = 1 / (np.arange(vocab_size) + 500.0)
    mixed = (1 - PRIOR_SHARE) * mass / mass.sum() + PRIOR_SHARE * prior / prior.sum()
    return torch.from_numpy(mixed.astype(np.float32))


def frequent_tokens(frequency: Tensor, count: int, always: Sequence[int]) -> Tensor:
    """The `count` likeliest ids of `frequency` [V], `always` among them, ascending: [count]."""
    wanted = frequency.clone()
    wanted[list(always)] = torch.inf
    return wanted.sort(descending=True, stable=True).indices[:count].sort().values


def inverse_of(token_ids: Tensor, vocab_size: int) -> Tensor:
    """[V] int64: the index of each id in `token_ids` [N], N for the others."""
    inverse = torch.full((vocab_size,), len(token_ids))
    inverse[token_ids] = torch.arange(len(token_ids))
    return inverse
