"""Rotary embeddings of half-precision models as one operator: their angles stay in float32."""

from __future__ import annotations

from typing import Any

from onnxscript.rewriter import pattern
from onnxscript.rewriter.rules.fusion._rotary_embedding import RotaryEmbedding23Fusion


class CastRotaryEmbedding(pattern.RewriteRuleClassBase):
    """onnxscript's rotary fusion for sines and cosines that are cast to the model's type."""

    def pattern(
        self,
        op: Any,
        x: Any,
        freqs: Any,
        start1: Any,
        end1: Any,
        start2: Any,
        end2: Any,
        one1: Any,
        one2: Any,
        dtype: Any,
    ) -> Any:
        """`x * cos + rotate_half(x) * sin`, both factors cast to `dtype`."""
        repeated = op.Concat(freqs, freqs, axis=-1)
        cos = op.Unsqueeze(op.Cast(op.Cos(repeated), to=dtype), one1)
        sin = op.Unsqueeze(op.Cast(op.Sin(repeated), to=dtype), one2)
        first = op.Slice(x, start1, end1, [3], [1])
        second = op.Slice(x, start2, end2, [3], [1])
        return x * cos + op.Concat(op.Neg(second), first, axis=-1) * sin

    def check(self, op: Any, **values: Any) -> Any:
        """What the fusion without casts asks: a known head size, split into its halves."""
        return RotaryEmbedding23Fusion().check(op, **values)  # type: ignore[no-untyped-call]

    def rewrite(self, op: Any, x: Any, freqs: Any, dtype: Any, **_: Any) -> Any:
        """`RotaryEmbedding` of the same angles, each once."""
        cos, sin = (op.Cast(each(freqs), to=dtype.value) for each in (op.Cos, op.Sin))
        return op.RotaryEmbedding(x, cos, sin, interleaved=0, num_heads=x.shape[1])


cast_rotary_embedding_rule = CastRotaryEmbedding.rule(remove_nodes=False)  # type: ignore[no-untyped-call]
