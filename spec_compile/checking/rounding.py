"""How far apart two right ways of computing one logit may be."""

from __future__ import annotations

from spec_compile.manifest import BundleConfig

_FLOAT32 = 1e-4
# Activations become integers before a product with quantised weights: a difference in the last bit
# of a float may move one by a whole step, and that on through all layers. Measured on the
# demonstration pair in int4, a prompt at once against token by token: 0.085 at most.
_QUANTIZED = 0.1


def logit_rounding(config: BundleConfig) -> float:
    """Largest difference of a logit between calls over other numbers of tokens or rows.

    Target and bundle may choose either of two tokens whose logits are closer than that.
    """
    return _FLOAT32 if config.quantize is None else _QUANTIZED
