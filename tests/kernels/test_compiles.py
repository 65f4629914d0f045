"""The kernels pass Triton's own compiler for real GPUs, which needs none of them here."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.triton
_COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from spec_compile.kernels import triton_kernels

floats = {"temperature", "uniforms", "draft_probs", "peaks", "sums", "block_sums",
          "residual_sums", "row_peak", "row_sum"}
wide = {"draft_tokens", "output", "emitted"}
constants = {"CHUNK_BLOCKS": 16, "BLOCK": 256, "ROWS": 8, "CHUNKS": 32, "BLOCKS": 512,
             "NO_MASS": 1e-30}

def kind(name, logits):
    if not name.endswith("_at"):
        return "constexpr" if name in constants else "i32"
    name = name.removesuffix("_at")
    if name == "logits":
        return "*" + logits
    return "*fp32" if name in floats else "*i64" if name in wide else "*i32"

for name in sys.argv[2:]:
    kernel = getattr(triton_kernels, name)
    signature = {argument: kind(argument, sys.argv[1]) for argument in kernel.arg_names}
    given = {(i,): constants[argument] for i, argument in enumerate(kernel.arg_names)
             if argument in constants}
    source = ASTSource(kernel, signature, given)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    print(name, len(compiled.asm["ptx"]))
"""
KERNELS = (
    "read_rows",
    "accept_drafts",
    "sum_residuals",
    "draw_tokens",
    "read_rows_greedily",
    "accept_drafts_greedily",
)


def test_every_kernel_compiles_for_a_gpu() -> None:
    command = [sys.executable, "-c", _COMPILE, "bf16", *KERNELS]
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    compiled = dict(line.split() for line in done.stdout.splitlines())
    assert set(compiled) == set(KERNELS)
    assert all(int(size) > 1000 for size in compiled.values())
