"""Acceptance at one position from its two laws, for independent candidates (SpecTr, section 3).

A selection rule turns K candidates of the draft's law into one token of the target's law; it
accepts when that token is among the candidates. Optimal transport accepts most; its value needs
no transport plan.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Law = NDArray[np.floating[Any]]
_BISECTIONS = 40


def optimal_acceptance(draft: Law, target: Law, num_drafts: int) -> float:
    """The most that any exact rule can accept of `num_drafts` independent candidates.

    1 + min over sets H of target(H) - draft(H)^K, where only sets of the tokens with the smallest
    target / draft matter, as t -> t^K is convex (Hu et al. 2025, arXiv 2502.18779; Khisti et al.
    2024, arXiv 2410.18234).

    Args:
        draft, target: [V], each summing to 1.
        num_drafts: K.
    """
    ratio = np.divide(target, draft, out=np.full(len(draft), np.inf), where=draft > 0)
    order = np.argsort(ratio, kind="stable")
    inside = np.cumsum(target[order], dtype=np.float64)
    proposed = np.minimum(np.cumsum(draft[order], dtype=np.float64), 1.0)
    return float(1 + min(0.0, (inside - proposed**num_drafts).min()))


def division_factor(draft: Law, target: Law, num_drafts: int) -> float:
    """The smallest valid rho of k-SEQ for `num_drafts` candidates, from above."""
    low, high = 1.0, float(num_drafts)
    for _ in range(_BISECTIONS if num_drafts > 1 else 0):
        middle = (low + high) / 2
        if sum((1 - _beta(draft, target, middle)) ** j for j in range(num_drafts)) <= middle:
            high = middle
        else:
            low = middle
    return high


def kseq_acceptance(draft: Law, target: Law, num_drafts: int) -> float:
    """What k-SEQ accepts: 1 - (1 - beta)^K with beta = sum(min(draft, target / rho)) at its rho."""
    high = division_factor(draft, target, num_drafts)
    return 1 - (1 - _beta(draft, target, high)) ** num_drafts


def recursive_acceptance(draft: Law, target: Law, num_drafts: int) -> float:
    """What `recursive` accepts: each candidate against the residual of those before it."""
    rejected, left = 1.0, target.astype(np.float64)
    for _ in range(num_drafts):
        residual = np.maximum(left - draft, 0.0)
        mass = float(residual.sum())
        rejected *= mass
        if mass == 0:
            break
        left = residual / mass
    return 1 - rejected


def fanout_acceptance(draft: Law, target: Law, num_drafts: int) -> float:
    """What `fanout` accepts at its first position: the K - 1 best tokens, and one of the others."""
    order = np.argsort(-draft, kind="stable")
    best = order[: num_drafts - 1]
    others = draft.astype(np.float64)
    others[best] = 0
    kept = float(target[best].sum(dtype=np.float64))
    if others.sum() == 0:  # the draft takes any other token, if there is one
        return kept + float(target[order[num_drafts - 1 : num_drafts]].sum())
    return kept + float(np.minimum(target, others / others.sum())[others > 0].sum())


def _beta(draft: Law, target: Law, rho: float) -> float:
    return float(np.minimum(draft, target / rho).sum(dtype=np.float64))
