"""The lowerings of the CPU, in order: what ONNX Runtime's kernels do faster than the standard."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import onnx_ir as ir
import onnx_ir.passes.common as ir_passes

from spec_compile.export.backend import BuildContext
from spec_compile.export.cpu.fuse_skip_norms import FuseSkipNorms
from spec_compile.export.cpu.group_attention import GroupAttention
from spec_compile.export.cpu.lowering import Lowering
from spec_compile.export.cpu.separate_heads import SeparateHeads
from spec_compile.export.cpu.slice_caches import SliceCaches

logger = logging.getLogger(__name__)


def build_lowerings() -> list[Lowering]:
    """The lowerings, in the order in which they run."""
    return [SliceCaches(), GroupAttention(), FuseSkipNorms(), SeparateHeads()]


def lower_for_cpu(
    models: Mapping[str, ir.Model],
    context: BuildContext,
    lowerings: Sequence[Lowering] | None = None,
) -> dict[str, int]:
    """Edit the standard models of a bundle in place.

    Args:
        models: by graph.
        context: what the models do not tell.
        lowerings: which, in order; None takes all.

    Returns:
        How often each lowering changed something, by its name.
    """
    counts: dict[str, int] = {}
    for each in build_lowerings() if lowerings is None else lowerings:
        for name, model in models.items():
            result = each(model, context)
            counts[each.name] = counts.get(each.name, 0) + result.rewrites
            for node, reason in result.misses:
                logger.info("%s leaves %s of %s: %s", each.name, node, name, reason)
    for model in models.values():
        ir_passes.RemoveUnusedNodesPass()(model)
        ir_passes.NameFixPass()(model)
    return counts
