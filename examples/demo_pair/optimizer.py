"""Muon for the matrices of the layers, AdamW for everything else."""

from __future__ import annotations

import torch
from torch import nn

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5


class Muon:
    """Momentum whose update is made orthogonal, matrices of one shape in one batched product.

    Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024). Learns a small
    model from markedly fewer tokens than AdamW; batching keeps its cost small on a CPU.
    """

    def __init__(self, matrices: list[nn.Parameter], momentum: float = 0.95) -> None:
        self._momentum = momentum
        by_shape: dict[tuple[int, ...], list[nn.Parameter]] = {}
        for matrix in matrices:
            by_shape.setdefault(tuple(matrix.shape), []).append(matrix)
        self._groups = [
            (group, torch.zeros(len(group), *shape)) for shape, group in by_shape.items()
        ]

    @property
    def averages(self) -> list[torch.Tensor]:
        """The momentum of each group of matrices."""
        return [average for _, average in self._groups]

    @torch.no_grad()
    def step(self, learning_rate: float, weight_decay: float) -> None:
        """Apply one update and drop the gradients."""
        for group, average in self._groups:
            grads = torch.stack([matrix.grad for matrix in group if matrix.grad is not None])
            average.lerp_(grads, 1 - self._momentum)
            update = orthogonalise(grads.lerp(average, self._momentum))
            rows, columns = update.shape[-2:]
            update *= max(1.0, rows / columns) ** 0.5
            for matrix, change in zip(group, update, strict=True):
                matrix.mul_(1 - learning_rate * weight_decay).sub_(learning_rate * change)
                matrix.grad = None


def orthogonalise(matrices: torch.Tensor) -> torch.Tensor:
    """Bring the singular values of `matrices` [N, R, C] near 1 by a quintic Newton-Schulz loop."""
    wide = matrices if matrices.shape[-2] <= matrices.shape[-1] else matrices.mT
    wide = wide / (wide.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    first, third, fifth = NEWTON_SCHULZ
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = wide @ wide.mT
        wide = first * wide + (third * gram + fifth * gram @ gram) @ wide
    result: torch.Tensor = wide if matrices.shape[-2] <= matrices.shape[-1] else wide.mT
    return result


class Optimizer:
    """Both optimizers behind one `step`; the learning rates share one schedule factor."""

    def __init__(
        self, model: nn.Module, matrix_rate: float, other_rate: float, weight_decay: float
    ) -> None:
        layers = [(n, p) for n, p in model.named_parameters() if p.ndim == 2 and "layers." in n]
        names = {name for name, _ in layers}
        others = [p for n, p in model.named_parameters() if n not in names]
        self._muon = Muon([parameter for _, parameter in layers])
        self._adam = torch.optim.AdamW(
            others, lr=other_rate, betas=(0.9, 0.98), eps=1e-10, weight_decay=0.0, fused=True
        )
        self._matrix_rate, self._other_rate, self._decay = matrix_rate, other_rate, weight_decay

    def step(self, factor: float) -> None:
        """Apply one update at `factor` times the base learning rates and drop the gradients."""
        self._muon.step(self._matrix_rate * factor, self._decay)
        for group in self._adam.param_groups:
            group["lr"] = self._other_rate * factor
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)

    def state(self) -> dict[str, torch.Tensor]:
        """What `load_state` needs to go on, by name."""
        found = {f"muon.{index}": average for index, average in enumerate(self._muon.averages)}
        for index, values in self._adam.state_dict()["state"].items():
            found |= {f"adam.{index}.{name}": value for name, value in values.items()}
        return found

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Go on from `state`, taken from an optimizer of the same model."""
        for index, average in enumerate(self._muon.averages):
            average.copy_(state[f"muon.{index}"])
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for path, value in state.items():
            owner, index_text, *name = path.split(".")
            if owner == "adam":
                moments.setdefault(int(index_text), {})[name[0]] = value
        groups = self._adam.state_dict()["param_groups"]
        self._adam.load_state_dict({"state": moments, "param_groups": groups})
