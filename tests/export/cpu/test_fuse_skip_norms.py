"""`fuse_skip_norms`: sums before norms, and the look-alikes that stay."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from spec_compile.export.backend import BuildContext
from spec_compile.export.cpu.fuse_skip_norms import FuseSkipNorms

CONTEXT = BuildContext(
    vocab_size=8, weight_names={}, max_length=8, batch_size=2, num_speculative_tokens=2
)
SUM_AND_NORM = """
    s = Add(x, y)
    n = {norm}
"""
RMS = "RMSNormalization<axis = -1, epsilon = 0.01>(s, w)"


def model_of(body: str, y: str = "float[B, T, 4]") -> ir.Model:
    return ir.from_onnx_text(
        '<ir_version: 11, opset_import: ["" : 24]>'
        f"g (float[B, T, 4] x, {y} y, float[4] w, float[4] b) "
        "=> (float[B, T, 4] n, float[B, T, 4] r)"
        "<float[B, T, 4] s, float[B, T, 4] e>"
        f"{{ {body} }}"
    )


def run(model: ir.Model) -> list[NDArray[np.float32]]:
    generator = np.random.default_rng(0)
    shapes = {"x": (2, 3, 4), "y": (2, 3, 4), "w": (4,), "b": (4,)}
    feeds = {n: generator.standard_normal(s, dtype=np.float32) for n, s in shapes.items()}
    names = [value.name for value in model.graph.inputs]
    session = ort.InferenceSession(
        ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    outputs: list[NDArray[np.float32]] = session.run(
        None, {str(name): feeds[str(name)] for name in names}
    )
    return outputs


@pytest.mark.parametrize(
    "norm,fused",
    [
        (RMS, "SkipSimplifiedLayerNormalization"),
        ("LayerNormalization<axis = -1>(s, w, b)", "SkipLayerNormalization"),
        ("LayerNormalization<axis = 2>(s, w)", "SkipLayerNormalization"),
    ],
)
def test_a_sum_and_its_norm_become_one(norm: str, fused: str) -> None:
    model = model_of(SUM_AND_NORM.format(norm=norm) + "r = Mul(s, n)")
    expected = run(model)
    assert FuseSkipNorms()(model, CONTEXT).rewrites == 1
    assert [node.op_type for node in model.graph] == [fused, "Mul"]
    for mine, theirs in zip(run(model), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)
    assert FuseSkipNorms()(model, CONTEXT).rewrites == 0


@pytest.mark.parametrize(
    "body,y,reason",
    [
        (SUM_AND_NORM.format(norm=RMS) + "r = Mul(s, n)", "float[4]", "of one shape"),
        ("s = Add(x, y) e = Exp(s) n = " + RMS + " r = Mul(e, n)", "", "read before the norm"),
        (
            SUM_AND_NORM.format(norm="LayerNormalization<axis = 1>(s, s)") + "r = Mul(s, n)",
            "",
            "norm of the last axis",
        ),
        (
            "s = Add(x, y) n, m = LayerNormalization<axis = -1>(s, w) r = Mul(n, m)",
            "",
            "mean or deviation is used",
        ),
    ],
)
def test_what_only_looks_like_it_stays_and_says_why(body: str, y: str, reason: str) -> None:
    model = model_of(body, y or "float[B, T, 4]")
    before = [node.op_type for node in model.graph]
    result = FuseSkipNorms()(model, CONTEXT)
    assert result.rewrites == 0
    assert len(result.misses) == 1 and reason in result.misses[0][1]
    assert [node.op_type for node in model.graph] == before


def test_a_norm_of_something_else_is_no_near_miss() -> None:
    model = model_of("s = Mul(x, y) n = " + RMS + " r = Mul(s, n)")
    result = FuseSkipNorms()(model, CONTEXT)
    assert (result.rewrites, result.misses) == (0, [])
