"""Bytes moved: the formula against a count of the loads that the interpreter really makes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from spec_compile.kernels.schedule import (
    Outcome,
    Schedule,
    kernel_traffic,
    least_traffic,
    reference_traffic,
)
from tests.helpers.kernel_rounds import random_round


@contextmanager
def counted_loads(*tensors: Tensor) -> Iterator[list[int]]:
    """Bytes that interpreted kernels load out of each of `tensors`, counted address by address."""
    from triton.runtime.interpreter import InterpreterBuilder

    counts = [0] * len(tensors)
    original = InterpreterBuilder.create_masked_load

    def load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        addresses = pointers.data[np.broadcast_to(mask.data, pointers.data.shape).astype(bool)]
        for index, tensor in enumerate(tensors):
            start, size = tensor.data_ptr(), tensor.element_size()
            inside = (addresses >= start) & (addresses < start + tensor.numel() * size)
            counts[index] += int(inside.sum()) * size
        return original(self, pointers, mask, *rest)

    InterpreterBuilder.create_masked_load = load
    try:
        yield counts
    finally:
        InterpreterBuilder.create_masked_load = original


@pytest.mark.triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_formula_counts_the_loads(dtype: torch.dtype) -> None:
    from spec_compile.kernels import launch

    vocab_size, num_drafts = 5 * 256, 2
    asked = random_round(6, num_drafts, vocab_size, dtype, seed=1)
    schedule = Schedule.of(vocab_size, max_chunk_blocks=2)
    with counted_loads(asked.logits, asked.draft_probs) as counts:
        _, emitted = launch.rejection(*asked.arguments(), schedule)
    sampled = emitted[asked.temperature > 0].tolist()
    bonus = sampled.count(num_drafts + 1)
    assert 0 < bonus < len(sampled)
    outcome = Outcome(recovered=len(sampled) - bonus, bonus=bonus, greedy=6 - len(sampled))
    expected = kernel_traffic(schedule, num_drafts, outcome, asked.logits.element_size())
    assert counts == [expected.logits, expected.draft_probs]


def test_logits_are_read_once_and_one_row_twice() -> None:
    vocab_size, num_drafts = 128_256, 4
    schedule = Schedule.of(vocab_size)
    rows = num_drafts + 1
    for outcome, readings in ((Outcome(recovered=8), rows + 1), (Outcome(bonus=8), rows)):
        traffic = kernel_traffic(schedule, num_drafts, outcome, logit_bytes=2)
        assert traffic.logits == pytest.approx(8 * readings * vocab_size * 2, rel=0.003)
        assert traffic.scratch < 0.05 * traffic.total
        least = least_traffic(vocab_size, num_drafts, outcome, logit_bytes=2)
        assert least.total < traffic.total < 1.25 * least.total
        assert reference_traffic(vocab_size, num_drafts, outcome, 2).total > 5 * traffic.total


def test_every_token_is_in_one_block_of_one_chunk() -> None:
    for vocab_size in (1, 255, 256, 257, 4096, 4097, 151_936):
        schedule = Schedule.of(vocab_size)
        chunk = 256 * schedule.chunk_blocks
        assert (schedule.num_chunks - 1) * chunk < vocab_size <= schedule.num_chunks * chunk
        assert schedule.num_blocks == schedule.num_chunks * schedule.chunk_blocks
