"""The two training loops: next-token loss for the target, distillation for the draft."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional
from transformers import LlamaForCausalLM

from examples.demo_pair.optimizer import Optimizer
from examples.demo_pair.vocabulary import TokenStream

StepLoss = Callable[[torch.Tensor, float], torch.Tensor]
Save = Callable[[], None]


@dataclass(frozen=True)
class Schedule:
    """How long and how fast one model learns.

    Attributes:
        steps: updates of the weights.
        rows, context: each step sees rows x context tokens.
        long_share: share of the steps, at the end, with rows twice as long and half as many.
        matrix_rate, other_rate: peak learning rates of Muon and AdamW.
        weight_decay: of the matrices.
        save_every: steps between two calls of `save`; 0 for none before the end.
        seed: decides the first weights and the order of the text.
        compiled: whether `torch.compile` speeds up the step (needs a C++ compiler).
    """

    steps: int
    rows: int = 8
    context: int = 256
    long_share: float = 0.25
    matrix_rate: float = 0.02
    other_rate: float = 0.004
    weight_decay: float = 0.1
    save_every: int = 0
    seed: int = 0
    compiled: bool = True


def train_target(
    model: LlamaForCausalLM, stream: TokenStream, schedule: Schedule, save: Save
) -> None:
    """Teach `model` to predict the next token of `stream`."""

    def loss(tokens: torch.Tensor) -> torch.Tensor:
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
        logs = logits.flatten(0, 1).log_softmax(-1)
        return functional.nll_loss(logs, tokens[:, 1:].flatten())

    run = torch.compile(loss, dynamic=False) if schedule.compiled else loss
    _train("target", model, stream, schedule, lambda tokens, _: run(tokens), save)


def train_draft(
    model: LlamaForCausalLM,
    target: LlamaForCausalLM,
    stream: TokenStream,
    schedule: Schedule,
    save: Save,
) -> None:
    """Teach `model` the target's law on `stream`.

    The loss moves from the cross entropy to the target's law, which learns fast, to
    1 - sum(min(draft, target)), the rejection probability of the acceptance rule itself.
    """

    def loss(tokens: torch.Tensor, soft: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            law = target(input_ids=tokens, use_cache=False).logits.softmax(-1)
        logs = model(input_ids=tokens, use_cache=False).logits.log_softmax(-1)
        cross_entropy = -(law * logs).sum(-1).mean()
        rejected = 1 - torch.minimum(law, logs.exp()).sum(-1).mean()
        mixed: torch.Tensor = soft * cross_entropy + (1 - soft) * 4 * rejected
        return mixed

    run = torch.compile(loss, dynamic=False) if schedule.compiled else loss
    target.requires_grad_(False)
    _train(
        "draft",
        model,
        stream,
        schedule,
        lambda tokens, done: run(tokens[:, :-1], torch.tensor(soft_share(done))),
        save,
    )


def soft_share(done: float) -> float:
    """Weight of the cross entropy when a share `done` of the steps lies behind: 1 down to 0.1."""
    return min(1.0, max(0.1, 1.3 - 2 * done))


def rate_factor(done: float) -> float:
    """Warm up over the first 2 % of the steps, then fall linearly to nothing."""
    return min(done / 0.02, 1.0 - done) if done < 1.0 else 0.0


def batches(stream: TokenStream, schedule: Schedule) -> Iterator[torch.Tensor]:
    """Endless batches [rows, context + 1]: each pass cuts and orders the text anew."""
    random = np.random.default_rng(schedule.seed)
    step, rows, context = 0, schedule.rows, schedule.context
    while True:
        width = context + 1
        offset = int(random.integers(width))
        pieces = stream[offset : offset + (len(stream) - offset) // width * width]
        pieces = pieces.reshape(-1, width)[random.permutation(len(pieces) // width)]
        for start in range(0, len(pieces) - rows + 1, rows):
            yield torch.from_numpy(pieces[start : start + rows])
            step += 1
            if context == schedule.context and step >= (1 - schedule.long_share) * schedule.steps:
                rows, context = max(rows // 2, 1), context * 2
                break


def _train(
    name: str,
    model: LlamaForCausalLM,
    stream: TokenStream,
    schedule: Schedule,
    loss_of: StepLoss,
    save: Save,
) -> None:
    model.train()
    optimizer = Optimizer(model, schedule.matrix_rate, schedule.other_rate, schedule.weight_decay)
    started, average = time.monotonic(), 0.0
    for step, tokens in zip(range(schedule.steps), batches(stream, schedule), strict=False):
        loss = loss_of(tokens, step / schedule.steps)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step(rate_factor((step + 1) / schedule.steps))
        average += (loss.item() - average) / min(step + 1, 50)
        _show(name, step + 1, schedule.steps, average, time.monotonic() - started)
        if schedule.save_every and (step + 1) % schedule.save_every == 0:
            save()
    model.train(False)
    save()


def _show(name: str, step: int, steps: int, loss: float, seconds: float) -> None:
    """A progress line on a terminal; every 50th step on a pipe."""
    terminal = sys.stderr.isatty()
    if terminal or step % 50 == 0 or step == steps:
        end = "\r" if terminal and step < steps else "\n"
        left = seconds / step * (steps - step)
        line = f"{name}: step {step}/{steps}  loss {loss:.3f}  {seconds:.0f} s, {left:.0f} s left "
        sys.stderr.write(line + end)
        sys.stderr.flush()
