"""The greedy kernels in Triton's interpreter: exactly the reference, ties to the lowest id."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spec_compile.kernels import ops, reference
from spec_compile.kernels.schedule import Schedule

pytestmark = pytest.mark.triton


def check(logits: Tensor, draft_tokens: Tensor, max_chunk_blocks: int = 16) -> Tensor:
    """The kernels give the reference's answer; returns how many tokens each row emitted."""
    from spec_compile.kernels import launch

    schedule = Schedule.of(logits.shape[-1], max_chunk_blocks)
    ours = launch.greedy(logits, draft_tokens, schedule)
    theirs = reference.accept_greedy(logits, draft_tokens)
    assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])
    return ours[1]


@pytest.mark.parametrize("vocab_size", [1, 5, 256, 1301])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_shapes_and_dtypes(vocab_size: int, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn((3, 4, vocab_size), generator=random).to(dtype)
    drafts = logits[:, :3].float().argmax(dim=-1)
    drafts[1, 1] = (drafts[1, 1] + 1) % vocab_size
    drafts[2, 0] = vocab_size
    expected = [4, 2, 1] if vocab_size > 1 else [4, 4, 1]
    assert check(logits, drafts, max_chunk_blocks=2).tolist() == expected


def test_the_lowest_of_equal_tokens_wins_across_chunks() -> None:
    logits = torch.zeros((1, 2, 1200))
    logits[0, 0, [300, 700, 1100]] = 4.0
    assert check(logits, torch.tensor([[300]]), max_chunk_blocks=1).tolist() == [2]
    assert check(logits, torch.tensor([[700]]), max_chunk_blocks=1).tolist() == [1]


def test_no_drafts() -> None:
    logits = torch.randn((3, 1, 300), generator=torch.Generator().manual_seed(0))
    assert check(logits, torch.zeros((3, 0), dtype=torch.int64)).tolist() == [1, 1, 1]


def test_rows_that_are_no_numbers_emit_nothing() -> None:
    logits = torch.zeros((3, 2, 300))
    logits[0, 1, 7], logits[1, 0, 7] = torch.nan, torch.inf
    tokens, emitted = ops.accept_greedy(logits, torch.zeros((3, 1), dtype=torch.int64))
    assert emitted.tolist() == [0, 0, 2]
    assert ((tokens >= -1) & (tokens < 300)).all()
