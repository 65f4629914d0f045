"""Several drafts in one row of a cache: where each token stands, and what it may see.

Behind the `base` committed entries of a row its K drafts lie step by step: entry base + i * K + j
is token i of draft j. All drafts of a row share its committed entries; nothing is copied to make
them, and the entries of the draft that survives are moved together afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from spec_compile.ops import MOVE_ENTRIES
from spec_compile.program import Graph


@dataclass(frozen=True)
class DraftTree:
    """K drafts of k tokens per row."""

    num_drafts: int
    num_steps: int

    @property
    def size(self) -> int:
        """Tokens of all drafts of a row."""
        return self.num_drafts * self.num_steps

    def first_call(self, tensors: Mapping[str, Tensor], slots: int) -> dict[str, Tensor]:
        """What a tree graph needs besides tokens and caches: `tokens` [B, T] are new to the row.

        The first `num_new` of a row's tokens are committed, the others are its drafts.
        """
        length, base = tensors["lengths"], _base(tensors)
        behind = torch.arange(tensors["tokens"].shape[1]) - tensors["num_new"][:, None]
        step = torch.where(behind < 0, behind, behind.clamp(min=0) // self.num_drafts)
        branch = behind.clamp(min=0) % self.num_drafts
        return {"lengths": length, "positions": base[:, None] + step} | self._seen(
            base, branch, slots
        )

    def step_call(self, tensors: Mapping[str, Tensor], step: int, slots: int) -> dict[str, Tensor]:
        """The same for tokens [B, K] that are token number `step` of each draft."""
        base = _base(tensors)
        branch = torch.arange(self.num_drafts).expand(base.shape[0], -1)
        return {
            "lengths": base + step * self.num_drafts,
            "positions": (base + step)[:, None].expand(-1, self.num_drafts),
        } | self._seen(base, branch, slots)

    def keep_survivor(
        self, caches: Mapping[str, Tensor], tensors: Mapping[str, Tensor], survivor: Tensor
    ) -> dict[str, Tensor]:
        """Caches with the entries of draft `survivor` [B] right behind the committed ones."""
        base = _base(tensors)
        steps = torch.arange(self.num_steps) * self.num_drafts
        source = base[:, None] + steps + survivor[:, None]
        return {name: MOVE_ENTRIES(cache, source, base) for name, cache in caches.items()}

    def _seen(self, base: Tensor, branch: Tensor, slots: int) -> dict[str, Tensor]:
        """Positions of slots [B, S], and the slots of a token's own draft [B, 1, T, S].

        That a token sees nothing later than itself is said by its model's own mask.
        """
        slot = torch.arange(slots)
        behind = slot - base[:, None]
        committed = behind < 0
        step, owner = behind.clamp(min=0) // self.num_drafts, behind.clamp(min=0) % self.num_drafts
        own = owner[:, None, None, :] == branch[:, None, :, None]
        return {
            "slot_positions": torch.where(committed, slot, base[:, None] + step),
            "visible": committed[:, None, None, :] | own,
        }


def chain_call(graph: Graph, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `graph` needs besides tokens and caches where there is one draft, or none."""
    if not any(spec.name == "positions" for spec in graph.inputs):
        return {}
    return DraftTree(1, 0).first_call(tensors, num_slots(graph))


def num_slots(graph: Graph) -> int:
    """S of a captured model."""
    return next(int(spec.shape[2]) for spec in graph.inputs if spec.is_cache)


def _base(tensors: Mapping[str, Tensor]) -> Tensor:
    return tensors["lengths"] + tensors["num_new"]
