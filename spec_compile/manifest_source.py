"""What a manifest must say of a model that reads a source text: encoders, and what they feed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spec_compile.graph_contract import (
    DRAFT_MEMORY,
    ENCODERS,
    SOURCE_LENGTHS,
    Expected,
    is_cross_tensor,
    is_source_tensor,
)
from spec_compile.json_fields import breach
from spec_compile.manifest_parts import BundleConfig, GraphSpec, TensorSpec

STARTS = "decoder_start_ids"


def check_source(
    config: BundleConfig, starts: Sequence[int], graphs: Mapping[str, GraphSpec], vocab_size: int
) -> None:
    """Refuse encoders whose outputs are not what the other graphs read.

    Args:
        config: what the bundle was compiled for.
        starts: tokens that every output begins with; empty for a bundle without encoders.
        graphs: all of the bundle.
        vocab_size: V.

    Raises:
        ArtifactError: naming the field.
    """
    _check_starts(config, starts, vocab_size)
    given: dict[str, TensorSpec] = {}
    for name in set(graphs).intersection(ENCODERS.values()):
        if not starts:
            raise breach(STARTS, f"is empty, but there is a graph {name!r}")
        given |= _outputs(f"graphs.{name}.outputs", graphs[name])
    for name, graph in graphs.items():
        if name not in ENCODERS.values():
            _check_reads(f"graphs.{name}.inputs", graph, given)


def _check_starts(config: BundleConfig, starts: Sequence[int], vocab_size: int) -> None:
    if not all(0 <= token < vocab_size for token in starts):
        raise breach(STARTS, f"must hold ids below vocab_size, {vocab_size}")
    if len(starts) >= config.max_length:
        raise breach(STARTS, "leaves no room for a token")


def _outputs(where: str, encoder: GraphSpec) -> dict[str, TensorSpec]:
    found: dict[str, TensorSpec] = {}
    for tensor in encoder.outputs:
        if not is_cross_tensor(tensor.name):
            raise breach(where, f"has {tensor.name!r}, which no graph reads")
        shape = ("B", "N", None) if tensor.name == DRAFT_MEMORY else ("B", None, "N", None)
        _require(where, tensor, Expected(tensor.dtype, shape))
        found[tensor.name] = tensor
    if not found:
        raise breach(where, "is empty")
    return found


def _check_reads(where: str, graph: GraphSpec, given: Mapping[str, TensorSpec]) -> None:
    read = [tensor for tensor in graph.inputs if is_source_tensor(tensor.name)]
    for tensor in read:
        if tensor.name == SOURCE_LENGTHS and given:
            _require(where, tensor, Expected("int64", ("B",)))
            continue
        source = given.get(tensor.name)
        if source is None:
            raise breach(where, f"has {tensor.name!r}, which no encoder gives")
        _require(where, tensor, Expected(source.dtype, source.shape))
    if given and not read:
        raise breach(where, f"must have {SOURCE_LENGTHS!r} and what an encoder gives")


def _require(where: str, tensor: TensorSpec, expected: Expected) -> None:
    if not expected.fits(tensor.dtype, tensor.shape):
        raise breach(where, f"must have {tensor.name!r} of {expected}")


def reads_memory(graph: GraphSpec) -> bool:
    """Whether this is a drafter without caches, which reads all committed tokens in every call."""
    return graph.input(DRAFT_MEMORY) is not None
