"""Models of the rules for several drafts; see `spec_compile.planning.observation` for the idea."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import comb
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from spec_compile.planning.observation import Chances, Observation
from spec_compile.planning.single import Block
from spec_compile.planning.transport import division_factor

_NO_MASS = 1e-12
_SAMPLES = 8


@dataclass(frozen=True)
class Walk:
    """Drafts drawn independently; those that have the token of the text are followed further.

    Args:
        num_drafts: K.
        accept: for a number of candidates, the chances that the first, second, .. of them was
            accepted as the token, and that one rejected before it was the same token.
    """

    num_drafts: int
    accept: Callable[[Observation, int], tuple[Chances, float]]

    def observe(self, seen: Observation) -> Chances:
        """[K + 1, K + 1]: the chance of each number of drafts followed, for each number before."""
        table = np.zeros((self.num_drafts + 1, self.num_drafts + 1))
        same = float(seen.draft[seen.token])
        for count in range(1, self.num_drafts + 1):
            chances, rejected_same = self.accept(seen, count)
            for index, chance in enumerate(chances):
                others = np.convolve(
                    _binomial(index, rejected_same), _binomial(count - 1 - index, same)
                )
                table[count, 1 : count + 1] += chance * others
        return table

    def survival(self, observed: Chances, num_speculative_tokens: int) -> Chances:
        """Chance that any draft is still followed."""
        size, states = observed.shape[:2]
        end = np.zeros((num_speculative_tokens, states, states))
        padded = np.concatenate([observed, end])
        followed = np.zeros((size, states))
        followed[:, -1] = 1.0
        survival = np.ones((size, num_speculative_tokens + 1))
        for step in range(num_speculative_tokens):
            followed = np.einsum("ns,nst->nt", followed, padded[step : step + size])
            survival[:, step + 1] = followed[:, 1:].sum(axis=1)
        return survival


@dataclass(frozen=True)
class FirstThenBlock:
    """First tokens that differ; then the draft that has the token of the text, by `block`.

    Args:
        num_drafts: K.
        first: the chance that the token of the text is the first token of a draft.
    """

    num_drafts: int
    first: Callable[[Observation, int], float]
    _rest: ClassVar[Block] = Block()

    def observe(self, seen: Observation) -> Chances:
        """[2]: the chance of a first position, and what `block` keeps of any other."""
        return np.array([self.first(seen, self.num_drafts), self._rest.observe(seen)])

    def survival(self, observed: Chances, num_speculative_tokens: int) -> Chances:
        """The first chance times the block's survival behind it."""
        rest = self._rest.survival(observed[:, 1], num_speculative_tokens - 1)
        behind_the_end = np.eye(1, num_speculative_tokens)
        rest = np.concatenate([rest[1:], behind_the_end])
        return np.concatenate([np.ones((len(rest), 1)), observed[:, :1] * rest], axis=1)


def recursive(seen: Observation, count: int) -> tuple[Chances, float]:
    """Each candidate against what those before it left of the target.

    A rejected token has nothing left, so that no candidate before the accepted one is the same.
    """
    left, reached, wanted = seen.target, 1.0, float(seen.target[seen.token])
    chances = np.zeros(count)
    for index in range(count):
        chances[index] = reached * min(seen.draft[seen.token], left[seen.token]) / wanted
        left, mass = _left_over(left, seen.draft)
        reached *= mass
    return chances, 0.0


def kseq(seen: Observation, count: int) -> tuple[Chances, float]:
    """Each candidate with probability min(1, target / (rho * draft)), at the smallest valid rho."""
    accepted = np.minimum(seen.draft, seen.target / division_factor(seen.draft, seen.target, count))
    missed = max(0.0, 1.0 - float(accepted.sum()))
    one = float(accepted[seen.token])
    reached = np.array([missed**index for index in range(count)])
    chances = np.asarray(one * reached / float(seen.target[seen.token]))
    same = (float(seen.draft[seen.token]) - one) / missed if missed > _NO_MASS else 0.0
    return chances, same


def fanout(seen: Observation, num_drafts: int) -> float:
    """The K - 1 best tokens are candidates anyway; the last one is judged by `rejection`."""
    best = seen.ranked[: num_drafts - 1]
    if seen.token in best:
        return 1.0
    law = _without(seen.draft, best, int(seen.ranked[num_drafts - 1]))
    return min(1.0, float(law[seen.token] / seen.target[seen.token]))


def recursive_wor(seen: Observation, num_drafts: int) -> float:
    """As `recursive`, where what is left depends on the candidates rejected: their mean.

    Rejected candidates are drawn, a few times over, from the law that they have once rejected.
    """
    certain = num_drafts == 1 or np.count_nonzero(seen.draft) == 1
    drawn = [_one_wor(seen, num_drafts) for _ in range(1 if certain else _SAMPLES)]
    return float(np.mean(drawn)) / float(seen.target[seen.token])


def _one_wor(seen: Observation, num_drafts: int) -> float:
    left, law, reached, found = seen.target, seen.draft, 1.0, 0.0
    gone: list[int] = []
    for _ in range(num_drafts):
        found += reached * min(float(law[seen.token]), float(left[seen.token]))
        over = np.maximum(law - left, 0.0)
        mass = float(over.sum())
        if mass <= _NO_MASS:
            break
        sums = np.cumsum(over)
        drawn = int(np.searchsorted(sums, seen.rng.random() * sums[-1], side="right"))
        gone.append(min(drawn, int(np.flatnonzero(over)[-1])))
        left, _ = _left_over(left, law)
        reached *= mass
        law = _without(law, np.array(gone), _best_left(seen, gone))
    return found


def _best_left(seen: Observation, gone: list[int]) -> int:
    return next((int(token) for token in seen.ranked if token not in gone), gone[0])


def _without(law: Chances, gone: NDArray[np.int64], otherwise: int) -> Chances:
    """`law` without some tokens, normalised; `otherwise` for certain where nothing is left."""
    kept = law.copy()
    kept[gone] = 0.0
    mass = float(kept.sum())
    if mass > _NO_MASS:
        return np.asarray(kept / mass)
    kept[:] = 0.0
    kept[otherwise] = 1.0
    return kept


def _left_over(target: Chances, law: Chances) -> tuple[Chances, float]:
    """max(0, target - law), normalised, and its mass; the target itself where nothing is left."""
    residual = np.maximum(target - law, 0.0)
    mass = float(residual.sum())
    return (residual / mass, mass) if mass > _NO_MASS else (target, 0.0)


def _binomial(count: int, chance: float) -> Chances:
    """Probabilities of 0, 1, .. `count` successes."""
    hits, yes = np.arange(count + 1), min(max(chance, 0.0), 1.0)
    ways = np.array([comb(count, number) for number in hits])
    return np.asarray(ways * yes**hits * (1 - yes) ** (count - hits))
