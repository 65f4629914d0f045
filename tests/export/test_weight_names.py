"""Names of weights: one for each, and the target's for what the draft has of it."""

from __future__ import annotations

import torch
from torch import nn

from spec_compile.export.weight_names import name_weights_of


def layers(*sizes: int, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.ModuleDict(
            {f"l{i}": nn.Linear(100, size, bias=False) for i, size in enumerate(sizes)}
        )


def test_every_weight_is_named_after_its_owner() -> None:
    models = {"target": layers(2, 3), "draft": layers(2, 3, seed=1)}
    names = name_weights_of(models)
    assert sorted(names.values()) == [
        "draft.l0.weight",
        "draft.l1.weight",
        "target.l0.weight",
        "target.l1.weight",
    ]


def test_equal_weights_get_the_first_owners_name() -> None:
    target, draft = layers(2, 3), layers(2, 3)
    nearly = draft["l1"].weight.data  # type: ignore[index]
    nearly[-1, -1] += 1e-3
    names = name_weights_of({"target": target, "draft": draft})
    found = [names[weight.data_ptr()] for weight in draft.parameters()]
    assert found == ["target.l0.weight", "draft.l1.weight"]


def test_tied_weights_keep_one_name() -> None:
    model = layers(2, 2)
    model["l1"].weight = model["l0"].weight  # type: ignore[index]
    assert list(name_weights_of({"target": model}).values()) == ["target.l0.weight"]
