"""`spec-compile inspect`: what is inside a bundle."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

from spec_compile.manifest import Manifest, TensorSpec
from spec_compile.runtime.loader import Bundle, open_bundle
from spec_compile.runtime.onnx_file import read_onnx


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `inspect`."""
    parser.add_argument("bundle", metavar="BUNDLE", help="folder that export wrote")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--no-verify-hash", action="store_true", help="skip the SHA-256 checks")


def run(args: argparse.Namespace) -> int:
    """Check the bundle and describe it."""
    bundle = open_bundle(args.bundle, verify_hash=not args.no_verify_hash)
    operators = count_operators(bundle)
    if args.json:
        manifest: dict[str, Any] = json.loads(bundle.manifest.to_json())
        text = json.dumps({**manifest, "operators": operators}, ensure_ascii=False)
    else:
        text = "\n".join(describe(bundle.manifest, operators))
    sys.stdout.write(text + "\n")
    return 0


def count_operators(bundle: Bundle) -> dict[str, dict[str, int]]:
    """Graph -> operator -> nodes, most frequent first; of graphs that are ONNX files."""
    return {
        name: dict(read_onnx(bundle.path(graph.file)).op_counts.most_common())
        for name, graph in bundle.manifest.graphs.items()
        if graph.file.endswith(".onnx")
    }


def describe(manifest: Manifest, operators: dict[str, dict[str, int]]) -> Iterator[str]:
    """The lines that `inspect` prints."""
    config = manifest.config
    law = "exact: the target's own law" if config.exact else "approximate: NOT the target's law"
    drafts = f"{config.num_speculative_tokens} draft tokens"
    if config.num_drafts > 1:
        drafts = f"{config.num_drafts} drafts of {config.num_speculative_tokens} tokens"
    settings = ""
    if config.specdec_beta is not None:
        settings = f", beta {config.specdec_beta}, tau {config.specdec_tau:g}"
    yield f"acceptance   {config.acceptance}{settings} ({law})"
    yield f"fusion       {config.fusion}, {drafts} a round"
    weights = f"target {config.quantize or config.dtype}"
    if config.lookup_sizes is None:
        weights += f", draft {config.quantize_draft or config.dtype}"
    else:
        yield "drafter      prompt-lookup, {} to {} last tokens".format(*config.lookup_sizes)
    yield f"engine       {config.backend}, weights: {weights}"
    if manifest.engine is not None:
        devices = ", ".join(manifest.engine.compute_capabilities)
        needs = f"{manifest.engine.package} {manifest.engine.version}"
        yield f"needs        {needs}" + (f", a device of {devices}" if devices else "")
    yield f"capacity     {config.max_length} tokens a row, {config.batch_size} rows"
    yield f"vocabulary   {manifest.vocab_size} ids, EOS {list(manifest.eos_token_ids)}"
    if manifest.reads_source:
        starts = list(manifest.decoder_start_ids)
        yield f"prompts      source texts, read by an encoder; outputs begin with {starts}"
    for name, model in manifest.models.items():
        yield (
            f"{name:<12} {model.source}: {model.architecture}, {model.num_layers} layers, "
            f"{model.num_parameters:,} parameters, licence {model.license or 'not stated'}"
        )
    for name, graph in manifest.graphs.items():
        yield ""
        yield f"graph {name} ({graph.file})"
        yield f"  inputs     {_tensors(graph.inputs)}"
        yield f"  outputs    {_tensors(graph.outputs)}"
        if name in operators:
            counts = operators[name]
            kinds = ", ".join(f"{count} {op}" for op, count in counts.items())
            yield f"  {sum(counts.values())} nodes    {kinds}"
    yield ""
    yield "files"
    for name, file in manifest.files.items():
        yield f"  {file.size:>14,} bytes  {file.sha256[:12]}  {name}"
    yield ""
    versions = ", ".join(f"{tool} {version}" for tool, version in manifest.created_by.items())
    yield f"made with    {versions} (format {manifest.format_version})"


def _tensors(tensors: tuple[TensorSpec, ...]) -> str:
    """`name[shape] dtype`, with the caches of all layers told once."""
    shown: dict[str, tuple[TensorSpec, int]] = {}
    for tensor in tensors:
        stem = tensor.name.rpartition(".")[0] if tensor.name[-1].isdigit() else tensor.name
        first, count = shown.get(stem or tensor.name, (tensor, 0))
        shown[stem or tensor.name] = (first, count + 1)
    return ", ".join(
        f"{count} x {stem}.*{_shape(first)}" if count > 1 else f"{first.name}{_shape(first)}"
        for stem, (first, count) in shown.items()
    )


def _shape(tensor: TensorSpec) -> str:
    return f"[{', '.join(map(str, tensor.shape))}] {tensor.dtype}"
