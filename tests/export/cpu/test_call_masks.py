"""Masks that ask how many tokens are real, by hand: each is judged over lengths and counts."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from spec_compile.export.backend import BuildContext
from spec_compile.export.cpu.cached_attention import cached_attentions
from spec_compile.export.cpu.group_attention import GroupAttention
from spec_compile.export.cpu.lowering import Lowered
from spec_compile.export.cpu.masks import Masks, Visible
from spec_compile.export.cpu.slice_caches import SliceCaches

SLOTS, MAX_LENGTH = 32, 26
CONTEXT = BuildContext(
    vocab_size=8, weight_names={}, max_length=MAX_LENGTH, batch_size=2, num_speculative_tokens=1
)
# `slot` [S] counts slots, `place` [B, 1, T, 1] says where each query's own entry goes, `base`
# [B, 1, 1, 1] where the committed ones end.
CAUSAL = "m = LessOrEqual(slot, place)"
SAME_BY_COUNTS = """
    back = Sub(place, base) again = Add(back, base)
    m = LessOrEqual(slot, again)
"""
TWO_DRAFTS = """
    before = Less(slot, base) past = LessOrEqual(slot, place)
    behind = Sub(slot, base) owner = Mod(behind, two)
    ahead = Sub(place, base) branch = Mod(ahead, two)
    own = Equal(owner, branch) seen = Or(before, own)
    m = And(seen, past)
"""
HALF_OF_PADDING = """
    past = LessOrEqual(slot, place) before = Less(place, base)
    parity = Mod(slot, two) even = Equal(parity, zero)
    some = Or(before, even) m = And(past, some)
"""
PADDING_LOOKS_AHEAD = """
    past = LessOrEqual(slot, place)
    real = Less(place, base) padding = Not(real)
    m = Or(past, padding)
"""
AHEAD_WHERE_ROWS_STAND_STILL = """
    past = LessOrEqual(slot, place) old = Unsqueeze(lengths, all_axes)
    still = Equal(old, base) m = Or(past, still)
"""
OF_TOKENS = """
    past = LessOrEqual(slot, place) odd = Equal(tokens, one)
    odds = Unsqueeze(odd, axes) some = ReduceMax<keepdims = 1>(place, axis)
    ahead = Less(some, base) other = And(odds, ahead) m = Or(past, other)
"""


def model_of(mask: str, *, drafts: bool = False) -> ir.Model:
    """Attention whose mask is `mask`: of T new tokens, or of the third of two drafts each."""
    fed, at = ("2", "Add(length, four)") if drafts else ("T", "Identity(lengths)")
    count = "Identity(pair)" if drafts else "Shape<start = 1, end = 2>(tokens)"
    where = "at" if drafts else "lengths"
    return ir.from_onnx_text(
        '<ir_version: 11, opset_import: ["" : 24]>'
        "g (int64[B, T] tokens, int64[B] num_new, int64[B] lengths, float[B, 2, FED, 8] q,"
        f" float[B, 1, FED, 8] k, float[B, 1, {SLOTS}, 8] keys, float[B, 1, {SLOTS}, 8] values)"
        f" => (float[B, FED, 16] y, float[B, 1, {SLOTS}, 8] next_keys,"
        f" float[B, 1, {SLOTS}, 8] next_values)"
        f"<bool[B, 1, FED, {SLOTS}] m, float[B, 2, FED, 8] a, float[B, FED, 2, 8] t>"
        "{"
        "zero = Constant<value_int = 0>() one = Constant<value_int = 1>()"
        "two = Constant<value_int = 2>() four = Constant<value_int = 4>()"
        "pair = Constant<value_ints = [2]>() axis = Constant<value_ints = [1]>()"
        "axes = Constant<value_ints = [1, 3]>() all_axes = Constant<value_ints = [1, 2, 3]>()"
        f"s = Constant<value_int = {SLOTS}>() slot = Range(zero, s, one)"
        f"length = Add(lengths, num_new) at = {at}"
        f"size = {count} n = Squeeze(size) steps = Range(zero, n, one)"
        "row = Unsqueeze(at, axis) p = Add(row, steps) place = Unsqueeze(p, axes)"
        "base = Unsqueeze(length, all_axes)"
        f"{mask}"
        f"next_keys = TensorScatter<axis = 2>(keys, k, {where})"
        f"next_values = TensorScatter<axis = 2>(values, k, {where})"
        "a = Attention(q, next_keys, next_values, m)"
        "t = Transpose<perm = [0, 2, 1, 3]>(a)"
        "shape = Constant<value_ints = [0, 0, 16]>() y = Reshape(t, shape)"
        "}".replace("FED", fed)
    )


def look(mask: str, *, drafts: bool = False) -> Visible:
    (attention,) = cached_attentions(model_of(mask, drafts=drafts).graph)
    return Masks(MAX_LENGTH)(attention)


@pytest.mark.parametrize(
    "mask,past_only,all_past",
    [
        (SAME_BY_COUNTS, True, True),
        (TWO_DRAFTS, True, True),  # only padding stands behind the committed tokens
        (HALF_OF_PADDING, True, True),
        (PADDING_LOOKS_AHEAD, False, True),
        (AHEAD_WHERE_ROWS_STAND_STILL, False, True),
        (OF_TOKENS, False, False),
    ],
)
def test_a_mask_of_counts_is_what_it_computes(mask: str, past_only: bool, all_past: bool) -> None:
    visible = look(mask)
    assert (visible.past_only, visible.all_past) == (past_only, all_past)
    assert bool(visible.reason) == (not visible.causal)


def test_drafts_side_by_side_are_not_causal() -> None:
    visible = look(TWO_DRAFTS, drafts=True)
    assert (visible.past_only, visible.all_past) == (True, False)
    assert look(CAUSAL, drafts=True).causal


def test_what_depends_on_tokens_says_so() -> None:
    assert "it depends on tokens" in look(OF_TOKENS).reason


@pytest.mark.parametrize(
    "mask,drafts,sliced,grouped",
    [
        (TWO_DRAFTS, False, 1, 1),
        (TWO_DRAFTS, True, 1, 0),
        (PADDING_LOOKS_AHEAD, False, 0, 0),
        (AHEAD_WHERE_ROWS_STAND_STILL, False, 0, 0),
        (OF_TOKENS, False, 0, 0),
    ],
)
def test_lowerings_take_only_masks_that_they_keep(
    mask: str, drafts: bool, sliced: int, grouped: int
) -> None:
    assert counts(SliceCaches()(model_of(mask, drafts=drafts), CONTEXT)) == (sliced, 1 - sliced)
    assert counts(GroupAttention()(model_of(mask, drafts=drafts), CONTEXT)) == (
        grouped,
        1 - grouped,
    )


def counts(result: Lowered) -> tuple[int, int]:
    return result.rewrites, len(result.misses)
