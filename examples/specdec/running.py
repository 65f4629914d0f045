"""A training that can stop at any time and go on later: state, schedule, average."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from examples.demo_pair.optimizer import Optimizer
from examples.specdec.pairs import Batch

STATE = "state.safetensors"
AVERAGED_STEPS = 200
SAVE_SECONDS = 120.0
LOG_SECONDS = 20.0
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rates:
    """Learning rates of the layers' matrices and of everything else, and how they begin."""

    matrices: float = 0.012
    others: float = 0.003
    weight_decay: float = 0.01
    warmup_steps: int = 200


class Run:
    """A model in training, the average of its last steps, and where it stands."""

    def __init__(self, model: nn.Module, rates: Rates) -> None:
        self.model, self.rates = model, rates
        self.optimizer = Optimizer(model, rates.matrices, rates.others, rates.weight_decay)
        self.average = {name: weight.detach().clone() for name, weight in self._weights()}
        self.steps, self.seconds, self.tokens = 0, 0.0, 0

    def _weights(self) -> list[tuple[str, nn.Parameter]]:
        return [(n, w) for n, w in self.model.named_parameters() if w.requires_grad]

    def step(self, loss: Tensor, factor: float, tokens: int) -> None:
        """One update with the gradient of `loss`, at `factor` times the learning rates."""
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_([w for _, w in self._weights()], 1.0)
        with torch.autocast("cpu", torch.bfloat16):
            self.optimizer.step(factor * min(1.0, (self.steps + 1) / self.rates.warmup_steps))
        self.steps += 1
        self.tokens += tokens
        share = 1 / min(self.steps, AVERAGED_STEPS)
        for name, weight in self._weights():
            self.average[name].lerp_(weight.detach(), share)

    def save(self, folder: Path) -> None:
        """Write what `resume` goes on from, in one rename."""
        weights = {f"model.{name}": weight.detach() for name, weight in self._weights()}
        average = {f"average.{name}": weight for name, weight in self.average.items()}
        moments = {f"optimizer.{name}": value for name, value in self.optimizer.state().items()}
        counts = {"steps": self.steps, "seconds": self.seconds, "tokens": self.tokens}
        state = {k: v.contiguous() for k, v in (weights | average | moments).items()}
        save_file(state, folder / ".state", {"counts": json.dumps(counts)})
        (folder / ".state").rename(folder / STATE)

    def resume(self, folder: Path) -> None:
        """Go on from what `save` wrote there, if it did."""
        if not (folder / STATE).is_file():
            return
        with safe_open(folder / STATE, framework="pt") as file:
            names: list[str] = file.keys()
            state = {name: file.get_tensor(name) for name in names}
            counts = json.loads(file.metadata()["counts"])
        self.model.load_state_dict(part_of(state, "model."), strict=False)
        self.average = part_of(state, "average.")
        self.optimizer.load_state(part_of(state, "optimizer."))
        self.steps, self.seconds = counts["steps"], counts["seconds"]
        self.tokens = counts["tokens"]

    def averaged(self) -> dict[str, Tensor]:
        """The model's state with the average weights."""
        return self.model.state_dict() | self.average


def part_of(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, without it."""
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def rate_factor(seconds: float, minutes: float, cool: float) -> float:
    """1, falling to 0.02 in the last `cool` of `minutes`."""
    if cool <= 0:
        return 1.0
    return max(0.02, min(1.0, (60 * minutes - seconds) / (60 * cool)))


def train(
    run: Run,
    stream: Iterator[Batch],
    loss_of: Callable[[Batch], Tensor],
    folder: Path,
    *,
    minutes: float,
    cool: float,
) -> None:
    """Train for `minutes`, the last `cool` of them with falling rates; saves as it goes."""
    run.model.train()
    begin = saved = logged = time.monotonic()
    earlier, total, count = run.seconds, 0.0, 0
    for batch in stream:
        now = time.monotonic()
        if now - begin >= 60 * minutes:
            break
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(batch)
        run.step(loss, rate_factor(now - begin, minutes, cool), int(batch.lengths.sum()))
        run.seconds = earlier + now - begin
        total, count = total + loss.item(), count + 1
        if now - logged >= LOG_SECONDS:
            _LOG.info(
                "step %d, %.2fM tokens, %.0f s, loss %.3f",
                run.steps, run.tokens / 1e6, run.seconds, total / count,
            )  # fmt: skip
            logged, total, count = now, 0.0, 0
        if now - saved >= SAVE_SECONDS:
            run.save(folder)
            saved = now
    run.save(folder)
