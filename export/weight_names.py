"""One name for every weight of a pair: equal weights of draft and target get the same one."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

# Elements looked at before two whole weights are compared.
_PROBE = 64


def name_weights_of(models: Mapping[str, nn.Module]) -> dict[int, str]:
    """`<owner>.<name in the checkpoint>` by the address of a weight's memory.

    A weight that an earlier model has too, bit for bit, gets that one's name: what is stored by
    name is then stored once. Drafts often keep their target's embeddings, or its first layers.

    Args:
        models: by owner; the first one's names win.
    """
    names: dict[int, str] = {}
    known: dict[tuple[object, ...], list[tuple[Tensor, str]]] = {}
    for owner, model in models.items():
        for name, weight in model.named_parameters():
            if weight.data_ptr() in names:
                continue
            alike = known.setdefault(_likeness(weight), [])
            same = next((other for tensor, other in alike if torch.equal(tensor, weight)), None)
            names[weight.data_ptr()] = same or f"{owner}.{name}"
            if same is None:
                alike.append((weight.detach(), f"{owner}.{name}"))
    return names


def _likeness(weight: Tensor) -> tuple[object, ...]:
    """The same for equal weights, and mostly another for others."""
    probe = weight.detach().flatten()[:_PROBE].double().tolist()
    return weight.dtype, tuple(weight.shape), *probe
