"""Masks are judged by what they compute: one sliding, one of tokens, one that shows the future."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from spec_compile.export.backend import BuildContext
from spec_compile.export.cpu.cached_attention import cached_attentions
from spec_compile.export.cpu.evaluate import NotAFunctionOfPositions, all_positions, evaluate
from spec_compile.export.cpu.group_attention import GroupAttention
from spec_compile.export.cpu.masks import Masks
from spec_compile.export.cpu.slice_caches import SliceCaches

SLOTS, MAX_LENGTH = 12, 10
CONTEXT = BuildContext(
    vocab_size=8, weight_names={}, max_length=MAX_LENGTH, batch_size=2, num_speculative_tokens=2
)
CAUSAL = "m = LessOrEqual(slots, position)"
WINDOW = """
    c = LessOrEqual(slots, position)
    near = Sub(position, slots)
    w = Less(near, four)
    m = And(c, w)
"""
FUTURE = "later = Add(position, one) m = LessOrEqual(slots, later)"
NEVER_BITES = WINDOW.replace("four", "twelve")
OF_TOKENS = """
    c = LessOrEqual(slots, position)
    odd = Equal(tokens, one)
    odds = Unsqueeze(odd, axes)
    m = Or(c, odds)
"""


def model_of(mask: str) -> ir.Model:
    """Attention over caches of SLOTS entries whose mask is computed by `mask`."""
    return ir.from_onnx_text(
        '<ir_version: 11, opset_import: ["" : 24]>'
        "g (int64[B, T] tokens, int64[B] lengths, float[B, 2, T, 8] q, float[B, 1, T, 8] k,"
        f" float[B, 1, {SLOTS}, 8] keys, float[B, 1, {SLOTS}, 8] values)"
        f" => (float[B, T, 16] y, float[B, 1, {SLOTS}, 8] next_keys,"
        f" float[B, 1, {SLOTS}, 8] next_values)"
        f"<bool[B, 1, T, {SLOTS}] m, float[B, 2, T, 8] a, float[B, T, 2, 8] t>"
        "{"
        "zero = Constant<value_int = 0>() one = Constant<value_int = 1>()"
        "four = Constant<value_int = 4>() twelve = Constant<value_int = 12>()"
        f"s = Constant<value_int = {SLOTS}>() slots = Range(zero, s, one)"
        "axis = Constant<value_ints = [1]>() axes = Constant<value_ints = [1, 3]>()"
        "size = Shape<start = 1, end = 2>(tokens) n = Squeeze(size) steps = Range(zero, n, one)"
        "row = Unsqueeze(lengths, axis) p = Add(row, steps) position = Unsqueeze(p, axes)"
        f"{mask}"
        "next_keys = TensorScatter<axis = 2>(keys, k, lengths)"
        "next_values = TensorScatter<axis = 2>(values, k, lengths)"
        "a = Attention(q, next_keys, next_values, m)"
        "t = Transpose<perm = [0, 2, 1, 3]>(a)"
        "shape = Constant<value_ints = [0, 0, 16]>() y = Reshape(t, shape)"
        "}"
    )


@pytest.mark.parametrize(
    "mask,past_only,all_past",
    [
        (CAUSAL, True, True),
        (NEVER_BITES, True, True),
        (WINDOW, True, False),
        (FUTURE, False, True),
        (OF_TOKENS, False, False),
    ],
)
def test_a_mask_is_what_it_computes(mask: str, past_only: bool, all_past: bool) -> None:
    (attention,) = cached_attentions(model_of(mask).graph)
    visible = Masks(MAX_LENGTH)(attention)
    assert (visible.past_only, visible.all_past) == (past_only, all_past)
    assert bool(visible.reason) == (not visible.causal)


@pytest.mark.parametrize(
    "mask,sliced,grouped",
    [(CAUSAL, 1, 1), (NEVER_BITES, 1, 1), (WINDOW, 1, 0), (FUTURE, 0, 0), (OF_TOKENS, 0, 0)],
)
def test_lowerings_take_only_masks_that_they_keep(mask: str, sliced: int, grouped: int) -> None:
    for lowering, count in ((SliceCaches(), sliced), (GroupAttention(), grouped)):
        model = model_of(mask)
        result = lowering(model, CONTEXT)
        assert result.rewrites == count
        assert len(result.misses) == 1 - count


def test_what_depends_on_tokens_says_so() -> None:
    (attention,) = cached_attentions(model_of(OF_TOKENS).graph)
    with pytest.raises(NotAFunctionOfPositions, match="depends on tokens"):
        evaluate(attention.mask, attention, all_positions(attention))


def test_positions_behind_the_last_token_do_not_count() -> None:
    """Slots from max_length on hold drafts that are thrown away: a clamp there changes nothing."""
    clamped = "last = Constant<value_int = 9>() c = Min(position, last) m = LessOrEqual(slots, c)"
    (attention,) = cached_attentions(model_of(clamped).graph)
    assert Masks(MAX_LENGTH)(attention).causal
    assert not Masks(SLOTS)(attention).causal
