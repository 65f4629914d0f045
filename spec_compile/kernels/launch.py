"""Launching the kernels: scratch memory, grids, addresses; needs the triton package."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import wrap_triton

from spec_compile.acceptance.base import NO_MASS
from spec_compile.kernels import triton_kernels as kernels
from spec_compile.kernels.schedule import Schedule, power_of_two
from spec_compile.sampling import BLOCK


def rejection(
    logits: Tensor,
    draft_tokens: Tensor,
    draft_probs: Tensor,
    temperature: Tensor,
    uniforms: Tensor,
    schedule: Schedule,
) -> tuple[Tensor, Tensor]:
    """`spec_compile.kernels.ops.accept_rejection` by the kernels, with a given cut of the rows."""
    batch, positions, vocab_size = logits.shape
    chunks, blocks = schedule.num_chunks, schedule.num_blocks
    cut = {"CHUNK_BLOCKS": schedule.chunk_blocks, "BLOCK": BLOCK}
    rows = power_of_two(positions)
    logits, draft_probs = logits.contiguous(), draft_probs.contiguous()
    drafts, temperature = draft_tokens.contiguous(), temperature.contiguous()
    uniforms = uniforms.contiguous()
    peaks, sums, block_sums = _floats(
        logits,
        (batch * positions, chunks),
        (batch * positions, chunks),
        (batch * positions, blocks),
    )
    best, numbers = _integers(logits, (batch * positions, chunks), (batch * positions, chunks))
    accepted, is_number, row_best = _integers(logits, (batch,), (batch,), (batch,))
    row_peak, row_sum, residual_sums = _floats(logits, (batch,), (batch,), (batch, blocks))
    output, emitted = _outputs(logits)
    num_drafts = positions - 1
    wrap_triton(kernels.read_rows)[batch * positions, chunks](
        logits, temperature, peaks, sums, best, numbers, block_sums,
        positions, vocab_size, chunks, **cut,
    )  # fmt: skip
    wrap_triton(kernels.accept_drafts)[(batch,)](
        logits, drafts, draft_probs, temperature, uniforms, peaks, sums, best, numbers,
        accepted, is_number, row_best, row_peak, row_sum,
        num_drafts, vocab_size, chunks, ROWS=rows, CHUNKS=power_of_two(chunks),
    )  # fmt: skip
    wrap_triton(kernels.sum_residuals)[batch, chunks](
        logits, draft_probs, temperature, accepted, row_peak, row_sum, residual_sums,
        num_drafts, vocab_size, blocks, **cut,
    )  # fmt: skip
    wrap_triton(kernels.draw_tokens)[(batch,)](
        logits, drafts, draft_probs, temperature, uniforms, peaks, block_sums,
        accepted, is_number, row_best, row_peak, row_sum, residual_sums, output, emitted,
        num_drafts, vocab_size, chunks,
        NO_MASS=NO_MASS, ROWS=rows, BLOCKS=power_of_two(blocks), **cut,
    )  # fmt: skip
    return output, emitted


def greedy(logits: Tensor, draft_tokens: Tensor, schedule: Schedule) -> tuple[Tensor, Tensor]:
    """`spec_compile.kernels.ops.accept_greedy` by the kernels, with a given cut of the rows."""
    batch, positions, vocab_size = logits.shape
    chunks = schedule.num_chunks
    logits, drafts = logits.contiguous(), draft_tokens.contiguous()
    (peaks,) = _floats(logits, (batch * positions, chunks))
    best, numbers = _integers(logits, (batch * positions, chunks), (batch * positions, chunks))
    output, emitted = _outputs(logits)
    wrap_triton(kernels.read_rows_greedily)[batch * positions, chunks](
        logits, peaks, best, numbers, vocab_size, chunks,
        CHUNK_BLOCKS=schedule.chunk_blocks, BLOCK=BLOCK,
    )  # fmt: skip
    wrap_triton(kernels.accept_drafts_greedily)[(batch,)](
        drafts, peaks, best, numbers, output, emitted,
        positions - 1, vocab_size, chunks,
        ROWS=power_of_two(positions), CHUNKS=power_of_two(chunks),
    )  # fmt: skip
    return output, emitted


def _floats(like: Tensor, *shapes: tuple[Any, ...]) -> list[Tensor]:
    return [like.new_empty(shape, dtype=torch.float32) for shape in shapes]


def _integers(like: Tensor, *shapes: tuple[Any, ...]) -> list[Tensor]:
    return [like.new_empty(shape, dtype=torch.int32) for shape in shapes]


def _outputs(logits: Tensor) -> tuple[Tensor, Tensor]:
    batch, positions = logits.shape[:2]
    return (
        logits.new_empty((batch, positions), dtype=torch.int64),
        logits.new_empty((batch,), dtype=torch.int64),
    )
