"""Cross entropy with label smoothing through a tied output layer, without keeping the logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

ROWS_AT_ONCE = 512  # always as many, so that kernels are made once


class _SmoothedCrossEntropy(torch.autograd.Function):
    """The gradient is made in the forward pass, a few rows at a time, in bfloat16 products."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float
    ) -> Tensor:
        matrix = weight.detach().bfloat16()
        rows, vocabulary = len(labels), len(weight)
        padding = -rows % ROWS_AT_ONCE
        states = functional.pad(hidden.detach().bfloat16(), (0, 0, 0, padding))
        wanted = functional.pad(labels, (0, padding))[:, None]
        share = functional.pad(torch.full((rows, 1), 1 / rows), (0, 0, 0, padding))
        total = torch.zeros(())
        hidden_grad = torch.empty_like(states)
        weight_grad = torch.zeros(weight.shape)
        for start in range(0, len(states), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            logits = (states[part] @ matrix.T).float()
            own, mean = logits.gather(1, wanted[part]), logits.mean(dim=1, keepdim=True)
            norm = logits.logsumexp(dim=1, keepdim=True)
            total += ((norm - (1 - smoothing) * own - smoothing * mean) * share[part]).sum()
            grad = logits.sub_(norm).exp_().sub_(smoothing / vocabulary)
            grad.scatter_add_(1, wanted[part], torch.full_like(own, smoothing - 1.0))
            scaled = grad.mul_(share[part]).bfloat16()
            hidden_grad[part] = scaled @ matrix
            weight_grad += (scaled.T @ states[part]).float()
        hidden_grad = hidden_grad[:rows]
        ctx.save_for_backward(hidden_grad.to(hidden.dtype), weight_grad)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        hidden_grad, weight_grad = ctx.saved_tensors
        return hidden_grad * grads[0], weight_grad * grads[0], None, None


def smoothed_cross_entropy(
    hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float
) -> Tensor:
    """Mean loss of `hidden` [N, d] at `labels` [N] for the logits hidden @ weight.T [N, V]."""
    loss: Tensor = _SmoothedCrossEntropy.apply(hidden, weight, labels, smoothing)  # type: ignore[no-untyped-call]
    return loss
