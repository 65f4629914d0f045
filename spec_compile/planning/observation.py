"""What a plan sees at each position of a text, and what it asks of a model of an acceptance rule.

The text is the target's own. An exact rule emits nothing else, so its rounds can be laid over that
text: given the tokens, the chance that a round goes on past each of them follows from the draft's
and the target's law at that place alone. No round is run, every k is served by one text, and the
places where rounds begin are those of the rule and the k in question.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Law = NDArray[np.float64]
Chances = NDArray[np.float64]


class Observation(NamedTuple):
    """One position of a text.

    Attributes:
        token: the token that the text has there.
        draft: [V], the draft's law.
        target: [V], the target's law.
        ranked: the draft's best tokens, best first, those outside its law last; as many as the
            most drafts asked for.
        rng: for estimates that draw.
    """

    token: int
    draft: Law
    target: Law
    ranked: NDArray[np.int64]
    rng: np.random.Generator


class RuleModel(Protocol):
    """How many draft tokens a rule accepts, given the text."""

    def observe(self, seen: Observation) -> Chances:
        """What has to be kept of a position, always of one shape."""

    def survival(self, observed: Chances, num_speculative_tokens: int) -> Chances:
        """Chance that a round which begins at a position accepts at least 0, 1, .. k draft tokens.

        Args:
            observed: [N, ...], one of `observe` for each position of a text.
            num_speculative_tokens: k.

        Returns:
            [N, k + 1]; nothing is accepted beyond the end of the text.
        """


def leading_products(factors: Chances, count: int) -> Chances:
    """Products of the first 0, 1, .. `count` factors from each place on: [N] to [N, count + 1].

    Factors beyond the end are 0.
    """
    size = len(factors)
    padded = np.concatenate([factors, np.zeros(count)])
    products = np.ones((size, count + 1))
    for step in range(count):
        products[:, step + 1] = products[:, step] * padded[step : step + size]
    return products
