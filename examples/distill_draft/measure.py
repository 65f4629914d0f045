"""How often a target would keep what a draft proposes, on texts that the draft never saw."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch.nn import functional

from examples.distill_draft.batches import inverse_of, make_batch
from examples.distill_draft.model import Draft
from examples.distill_draft.store import Text

_GROUP = 8


@torch.inference_mode()
def measure(draft: Draft, texts: Sequence[Text]) -> dict[str, dict[str, float]]:
    """Acceptance and agreement by kind of prompt, and over all.

    Returns:
        For each kind and for `all`, which leaves out text that was only read: `labels`;
        `acceptance`, the mean of sum min(draft, target) at temperature 1; `agreement`, how often
        both have the same likeliest token; the same two as `acceptance_at_1` over texts written at
        temperature 1 and `agreement_at_0` over those written at temperature 0; `covered`, the
        target's mass on the tokens the draft has.
    """
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    inverse = inverse_of(draft.token_ids, len(draft.embeddings))
    ordered = sorted(texts, key=lambda text: len(text.tokens))
    for place in range(0, len(ordered), _GROUP):
        group = ordered[place : place + _GROUP]
        batch = make_batch(group, inverse)
        probs = draft(batch.tokens, batch.rows, batch.places).softmax(dim=-1)
        mine = functional.pad(probs, (0, 1)).gather(1, batch.law_index)
        accepted = torch.minimum(mine, batch.law).sum(dim=-1)
        agreed = draft.token_ids[probs.argmax(dim=-1)] == batch.law_ids[:, 0]
        covered = (batch.law * (batch.law_index < probs.shape[1])).sum(dim=-1)
        for row, text in enumerate(group):
            mask = batch.rows == row
            for name in ("all", text.kind) if text.kind != "read" else ("read",):
                one = sums[name]
                _add(one, "", mask, accepted, agreed, covered)
                if text.temperature in (0.0, 1.0):
                    _add(one, f"_at_{text.temperature:.0f}", mask, accepted, agreed, covered)
    return {name: _means(one) for name, one in sorted(sums.items())}


def _add(
    sums: dict[str, float],
    suffix: str,
    mask: torch.Tensor,
    accepted: torch.Tensor,
    agreed: torch.Tensor,
    covered: torch.Tensor,
) -> None:
    sums[f"labels{suffix}"] += float(mask.sum())
    for name, values in (("acceptance", accepted), ("agreement", agreed), ("covered", covered)):
        sums[f"{name}{suffix}"] += float(values[mask].sum())


def _means(sums: dict[str, float]) -> dict[str, float]:
    means: dict[str, float] = {"labels": int(sums["labels"])}
    for name in ("acceptance", "agreement", "covered", "acceptance_at_1", "agreement_at_0"):
        count = sums[f"labels{name[-5:] if '_at_' in name else ''}"]
        if count:
            means[name] = round(sums[name] / count, 4)
    return means
