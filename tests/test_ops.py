"""Our operators: attention over caches against plain loops, and what tracing believes of them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from spec_compile.ops import CACHED_ATTENTION, PROCESS_LOGITS
from spec_compile.sampling import Sampling, process_logits

ROWS, HEADS, WIDTH, VALUE_WIDTH, SLOTS = 3, 4, 8, 6, 12
LENGTHS = [0, 1, 7]


def inputs(kv_heads: int, num_new: int, window: int = SLOTS) -> list[Tensor]:
    """Random arguments up to the mask, which is causal with a window."""
    generator = torch.Generator().manual_seed(kv_heads * 10 + num_new)
    shapes = [
        (ROWS, HEADS, num_new, WIDTH),
        (ROWS, kv_heads, num_new, WIDTH),
        (ROWS, kv_heads, num_new, VALUE_WIDTH),
        (ROWS, kv_heads, SLOTS, WIDTH),
        (ROWS, kv_heads, SLOTS, VALUE_WIDTH),
    ]
    tensors = [torch.randn(shape, generator=generator) for shape in shapes]
    lengths = torch.tensor(LENGTHS)
    position = lengths[:, None, None] + torch.arange(num_new)[:, None]
    slot = torch.arange(SLOTS)
    mask = (slot <= position) & (slot > position - window)
    return [*tensors, lengths, mask[:, None]]


def loop(arguments: list[Tensor], row: int, head: int, step: int, softcap: float) -> Tensor:
    """Attention of one query by the definition: history is the cache, then the new entries."""
    query, key, value, key_cache, value_cache, lengths, mask = arguments
    kv_head, length = head // (HEADS // key.shape[1]), int(lengths[row])
    keys = torch.cat([key_cache[row, kv_head, :length], key[row, kv_head, : step + 1]])
    values = torch.cat([value_cache[row, kv_head, :length], value[row, kv_head, : step + 1]])
    scores = keys @ query[row, head, step] / math.sqrt(WIDTH)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    visible = mask[row, 0, step, : len(keys)]
    return scores[visible].softmax(dim=0) @ values[visible]


@pytest.mark.parametrize("softcap", [0.0, 0.7])
@pytest.mark.parametrize("window", [3, SLOTS])
@pytest.mark.parametrize("kv_heads,num_new", [(1, 1), (2, 4), (4, 5)])
def test_attention_by_definition(kv_heads: int, num_new: int, window: int, softcap: float) -> None:
    arguments = inputs(kv_heads, num_new, window)
    output, _, _ = CACHED_ATTENTION(*arguments, WIDTH**-0.5, softcap)
    for row in range(ROWS):
        for head in range(HEADS):
            for step in range(num_new):
                expected = loop(arguments, row, head, step, softcap)
                torch.testing.assert_close(output[row, head, step], expected)


def test_new_entries_land_behind_the_valid_ones_and_nowhere_else() -> None:
    arguments = inputs(2, 4)
    before = [tensor.clone() for tensor in arguments]
    _, keys, values = CACHED_ATTENTION(*arguments, 1.0, 0.0)
    assert all(torch.equal(now, then) for now, then in zip(arguments, before, strict=True))
    for row, length in enumerate(LENGTHS):
        new = slice(length, length + 4)
        rest = [slot for slot in range(SLOTS) if not length <= slot < length + 4]
        for updated, fresh, old in (
            (keys, arguments[1], arguments[3]),
            (values, arguments[2], arguments[4]),
        ):
            assert torch.equal(updated[row, :, new], fresh[row])
            assert torch.equal(updated[row][:, rest], old[row][:, rest])


def test_what_lies_behind_the_valid_entries_is_never_read() -> None:
    arguments = inputs(2, 4)
    output, _, _ = CACHED_ATTENTION(*arguments, 1.0, 0.0)
    for cache in arguments[3:5]:
        for row, length in enumerate(LENGTHS):
            cache[row, :, length:] = 1e6
    again, _, _ = CACHED_ATTENTION(*arguments, 1.0, 0.0)
    assert torch.equal(again, output)


def test_attention_keeps_the_type_of_its_inputs() -> None:
    arguments = [t.half() if t.is_floating_point() else t for t in inputs(2, 3)]
    assert [t.dtype for t in CACHED_ATTENTION(*arguments, 1.0, 0.0)] == [torch.float16] * 3


def test_tracing_believes_the_right_shapes() -> None:
    arguments = (*inputs(2, 3), 1.0, 0.0)
    torch.library.opcheck(CACHED_ATTENTION, arguments)


def options() -> Sampling:
    return Sampling(
        torch.tensor([0.0, 1.0, 0.7]),
        torch.tensor([0, 4, 0]),
        torch.tensor([1.0, 1.0, 0.8]),
        torch.tensor([0.0, 0.0, 0.1]),
    )


def test_process_logits_is_the_sampling_function() -> None:
    logits = torch.randn(3, 2, 9, generator=torch.Generator().manual_seed(0))
    law = PROCESS_LOGITS(logits, *options())
    assert torch.equal(law, process_logits(logits, options()))
    torch.library.opcheck(PROCESS_LOGITS, (logits, *options()))


def test_process_logits_gives_float32_for_any_type() -> None:
    logits = torch.randn(3, 2, 9, generator=torch.Generator().manual_seed(0)).half()
    assert PROCESS_LOGITS(logits, *options()).dtype == torch.float32
