"""The bundle's contract: `manifest.json` as frozen dataclasses (standard library only).

`Manifest.from_json` trusts nothing: every breach is one `ArtifactError` that names the field. The
same checks run on construction, so a writer cannot produce what a reader refuses. The format is
described in `docs/bundle_format.md`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spec_compile.config import DRAFTERS, LONGEST_NGRAM, PROMPT_LOOKUP, PROMPT_LOOKUP_RULES
from spec_compile.engine_spec import EngineSpec, read_engine_spec
from spec_compile.errors import ArtifactError
from spec_compile.graph_contract import (
    ENCODERS,
    FREE_SIZES,
    GRAPHS_OF_FUSION,
    Expected,
    drafts_shape,
    graph_inputs,
    graph_outputs,
    is_source_tensor,
    required_graphs,
)
from spec_compile.json_fields import (
    TOP_LEVEL,
    Fields,
    as_integer,
    as_text,
    breach,
    unique_fields,
)
from spec_compile.manifest_parts import (
    BundleConfig,
    FileSpec,
    GraphSpec,
    ModelSpec,
    TensorSpec,
    read_config,
    read_file,
    read_graph,
    read_model,
)
from spec_compile.manifest_source import STARTS, check_source, reads_memory

__all__ = ["BundleConfig", "FileSpec", "GraphSpec", "Manifest", "ModelSpec", "TensorSpec"]

FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"
TENSOR_DTYPES = frozenset(
    {"bool", "uint8", "int8", "int16", "int32", "int64"}
    | {"float16", "bfloat16", "float32", "float64"}
)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LONGEST_NAME = 255  # of one part of a path: what file systems take
_MOST_ELEMENTS = 2**40  # of one tensor and row: more fits no machine


@dataclass(frozen=True)
class Manifest:
    """Everything a runtime must know about a bundle.

    Args:
        config: what the bundle was compiled for.
        vocab_size: number of token ids that the tokenizer knows; ids are 0..vocab_size - 1.
        eos_token_ids: any of these ends the output.
        bos_token_id: the beginning-of-text id, or None; the tokenizer decides where it goes.
        models: `target`, and `draft` where the drafter is a model.
        graphs: the graphs that `config.fusion` and `config.drafter` ask for.
        files: every file of the bundle but the manifest itself; keys are POSIX paths inside it.
        created_by: tool -> version.
        engine: what engines of a device need to be run; None where `config.backend` needs nothing.
        decoder_start_ids: tokens that every output begins with, for a model that reads a source
            text through an encoder; empty for others.
        format_version: version of this format.

    Raises:
        ArtifactError: a field breaks the format; the message names it.
    """

    config: BundleConfig
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    models: Mapping[str, ModelSpec]
    graphs: Mapping[str, GraphSpec]
    files: Mapping[str, FileSpec]
    created_by: Mapping[str, str] = field(default_factory=dict)
    engine: EngineSpec | None = None
    decoder_start_ids: tuple[int, ...] = ()
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        _check_manifest(self)

    @property
    def reads_source(self) -> bool:
        """Whether prompts are source texts, read by an encoder."""
        return bool(self.decoder_start_ids)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Parse `manifest.json`.

        Raises:
            ArtifactError: not JSON, a newer format, or a field that breaks the format.
        """
        try:
            raw = json.loads(text, object_pairs_hook=unique_fields)
        except (ValueError, RecursionError) as error:
            raise ArtifactError(f"{MANIFEST_FILE} is not valid JSON: {error}") from error
        return _read_manifest(raw)

    def to_json(self) -> str:
        """The text of `manifest.json`; `from_json` of it equals this manifest."""
        raw = {
            "format_version": self.format_version,
            "created_by": dict(self.created_by),
            "config": vars(self.config),
            "vocab_size": self.vocab_size,
            "eos_token_ids": list(self.eos_token_ids),
            "bos_token_id": self.bos_token_id,
            "models": {name: vars(model) for name, model in self.models.items()},
            "graphs": {name: _graph_to_json(graph) for name, graph in self.graphs.items()},
            "files": {name: vars(file) for name, file in self.files.items()},
            **({"engine": self.engine.as_dict()} if self.engine else {}),
            **({STARTS: list(self.decoder_start_ids)} if self.decoder_start_ids else {}),
        }
        return json.dumps(raw, indent=1, ensure_ascii=False) + "\n"


def _check_manifest(manifest: Manifest) -> None:
    """Check what no single field shows."""
    config = manifest.config
    for name in ("num_speculative_tokens", "batch_size", "num_drafts"):
        _require(getattr(config, name) >= 1, f"config.{name}", "must be at least 1")
    _require(
        config.max_length > config.num_speculative_tokens,
        "config.max_length",
        "must be greater than num_speculative_tokens",
    )
    _require(
        config.fusion in GRAPHS_OF_FUSION,
        "config.fusion",
        f"is {config.fusion!r}; this version runs {', '.join(GRAPHS_OF_FUSION)}",
    )
    _check_drafter(config)
    _check_specdec(config)
    _require(manifest.vocab_size >= 1, "vocab_size", "must be at least 1")
    specials = [*manifest.eos_token_ids]
    specials += [] if manifest.bos_token_id is None else [manifest.bos_token_id]
    for token in specials:
        _require(
            0 <= token < manifest.vocab_size,
            "eos_token_ids and bos_token_id",
            f"must be below vocab_size, got {token}",
        )
    _require("target" in manifest.models, "models", "must have an entry 'target'")
    _check_files(manifest)
    required = required_graphs(config.fusion, config.drafter, seq2seq=manifest.reads_source)
    for name in required:
        _require(name in manifest.graphs, "graphs", f"must have an entry {name!r}")
    for name, graph in manifest.graphs.items():
        _check_graph(f"graphs.{name}", graph, manifest)
        _check_roles(f"graphs.{name}", name, graph, manifest)
    check_source(config, manifest.decoder_start_ids, manifest.graphs, manifest.vocab_size)


def _check_drafter(config: BundleConfig) -> None:
    where, drafter = "config.drafter", config.drafter
    _require(drafter in DRAFTERS, where, f"is {drafter!r}; this version runs {', '.join(DRAFTERS)}")
    least, most = config.prompt_lookup_min, config.prompt_lookup_max
    if drafter != PROMPT_LOOKUP:
        unused = least is None and most is None
        _require(unused, where, f"is {drafter!r}, which has no n-gram sizes")
        return
    _require(config.fusion == "verify", where, "is prompt-lookup, which needs fusion verify")
    _require(
        config.acceptance in PROMPT_LOOKUP_RULES,
        where,
        f"is prompt-lookup, which needs acceptance {' or '.join(PROMPT_LOOKUP_RULES)}",
    )
    _require(
        least is not None and most is not None and 1 <= least <= most <= LONGEST_NGRAM,
        "config.prompt_lookup_min and prompt_lookup_max",
        f"must be 1 to {LONGEST_NGRAM} and in order",
    )


def _check_specdec(config: BundleConfig) -> None:
    where, beta, tau = (
        "config.specdec_beta and specdec_tau",
        config.specdec_beta,
        config.specdec_tau,
    )
    if config.acceptance != "specdec":
        _require(beta is None and tau is None, where, f"do not belong to {config.acceptance!r}")
        return
    sound = beta is not None and tau is not None and beta >= 1 and tau >= 0
    _require(sound, where, "must be a beta of at least 1 and a tau of at least 0")
    _require(config.exact == (beta == 1), "config.exact", f"does not fit specdec_beta={beta}")


def _check_relative_path(where: str, path: str) -> None:
    """Refuse what is absolute, or has a drive, a backslash, or an empty, `.` or `..` part."""
    parts = path.split("/")
    plain = all(part not in ("", ".", "..") and len(part) <= _LONGEST_NAME for part in parts)
    if not plain or any(char in path for char in "\\:\0"):
        raise breach(where, f"{path!r} is not a plain relative path inside the bundle; refused")


def _check_files(manifest: Manifest) -> None:
    for path, file in manifest.files.items():
        _check_relative_path("files", path)
        _require(path != MANIFEST_FILE, "files", f"must not list {MANIFEST_FILE} itself")
        _require(file.size >= 0, f"files[{path!r}].size", "must not be negative")
        _require(
            _SHA256.fullmatch(file.sha256) is not None,
            f"files[{path!r}].sha256",
            "must be 64 lower-case hexadecimal digits",
        )


def _check_graph(where: str, graph: GraphSpec, manifest: Manifest) -> None:
    _require(graph.file in manifest.files, f"{where}.file", f"{graph.file!r} is not in `files`")
    for side, tensors in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        names = [tensor.name for tensor in tensors]
        _require(len(set(names)) == len(names), f"{where}.{side}", "has a name twice")
        for tensor in tensors:
            _require(
                tensor.dtype in TENSOR_DTYPES,
                f"{where}.{side} {tensor.name!r}",
                f"has unknown dtype {tensor.dtype!r}",
            )
            _require(
                all(s in FREE_SIZES if isinstance(s, str) else s >= 0 for s in tensor.shape),
                f"{where}.{side} {tensor.name!r}",
                f"has a shape of other than numbers and {', '.join(FREE_SIZES)}",
            )
            _require(
                math.prod(s for s in tensor.shape if isinstance(s, int)) <= _MOST_ELEMENTS,
                f"{where}.{side} {tensor.name!r}",
                "is larger than any memory",
            )
    for tensor in graph.inputs:
        _require(tensor.alias_of is None, f"{where}.inputs {tensor.name!r}", "must not be an alias")
    for tensor in graph.outputs:
        _require(
            "T" not in tensor.shape, f"{where}.outputs {tensor.name!r}", "must not grow with T"
        )
        if tensor.alias_of is not None:
            source = graph.input(tensor.alias_of)
            _require(
                source is not None and (source.dtype, source.shape) == (tensor.dtype, tensor.shape),
                f"{where}.outputs {tensor.name!r}",
                f"alias_of {tensor.alias_of!r} is no input of the same dtype and shape",
            )


def _check_roles(where: str, name: str, graph: GraphSpec, manifest: Manifest) -> None:
    """Every tensor that a runtime binds by name has the dtype and shape of the graph contract."""
    config, vocab = manifest.config, manifest.vocab_size
    drafts = drafts_shape(config.num_drafts, config.num_speculative_tokens)
    any_length = name == "verify" and len(drafts) == 1 and graph.takes_any_length
    required, optional = graph_inputs(name, drafts, vocab, any_length=any_length)
    for role, expected in (required | optional).items():
        tensor = graph.input(role)
        if tensor is not None or role in required:
            _require_tensor(f"{where}.inputs", role, tensor, expected)
    outputs = graph_outputs(name, drafts, vocab, any_length=any_length)
    for role, expected in outputs.items():
        _require_tensor(f"{where}.outputs", role, graph.output(role), expected)
    caches = {tensor.name for tensor in graph.caches}
    has_caches = len(caches) > 0 or name in ENCODERS.values() or reads_memory(graph)
    _require(has_caches, f"{where}.outputs", "must have a cache (`alias_of`)")
    for cache in graph.caches:
        _check_cache(f"{where}.inputs {cache.name!r}", cache, config.slots)
    for tensor in graph.inputs:
        known = tensor.name in caches or tensor.name in required or tensor.name in optional
        known = known or is_source_tensor(tensor.name)
        _require(known, f"{where}.inputs", f"has {tensor.name!r}, which no runtime feeds")
    fed_by_draft = graph.input("draft_probs") is not None
    if name == "verify" and config.drafter == PROMPT_LOOKUP:
        _require(not fed_by_draft, f"{where}.inputs", "has 'draft_probs', but there is no draft")
    if name == "verify" and fed_by_draft and "draft" in manifest.graphs:
        law = manifest.graphs["draft"].output("draft_probs")
        _require_tensor("graphs.draft.outputs", "draft_probs", law, optional["draft_probs"])


def _check_cache(where: str, cache: TensorSpec, slots: int) -> None:
    fits = Expected(cache.dtype, ("B", None, None, None)).fits(cache.dtype, cache.shape)
    enough = fits and isinstance(cache.shape[2], int) and cache.shape[2] >= slots
    _require(enough, where, f"must be of shape [B, heads, at least {slots} slots, size]")


def _require_tensor(where: str, name: str, tensor: TensorSpec | None, expected: Expected) -> None:
    fits = tensor is not None and expected.fits(tensor.dtype, tensor.shape)
    _require(fits, where, f"must have {name!r} of {expected}")


def _graph_to_json(graph: GraphSpec) -> dict[str, Any]:
    return {
        "file": graph.file,
        "inputs": [_tensor_to_json(tensor) for tensor in graph.inputs],
        "outputs": [_tensor_to_json(tensor) for tensor in graph.outputs],
    }


def _tensor_to_json(tensor: TensorSpec) -> dict[str, Any]:
    raw: dict[str, Any] = {"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape)}
    return raw if tensor.alias_of is None else {**raw, "alias_of": tensor.alias_of}


def _require(condition: bool, where: str, problem: str) -> None:
    if not condition:
        raise breach(where, problem)


def _read_manifest(raw: object) -> Manifest:
    top = Fields(raw, TOP_LEVEL)
    version = top.integer("format_version")
    if version != FORMAT_VERSION:
        advice = "upgrade spec-compile" if version > FORMAT_VERSION else "export the bundle again"
        problem = f"is {version}, this spec-compile reads version {FORMAT_VERSION}; {advice}"
        raise breach("format_version", problem)
    manifest_fields: dict[str, Any] = {
        "format_version": version,
        "created_by": {
            name: as_text(value, where) for name, value, where in top.items("created_by")
        },
        "config": read_config(Fields(top.take("config"), "config")),
        "vocab_size": top.integer("vocab_size"),
        "eos_token_ids": tuple(as_integer(v, w) for v, w in top.elements("eos_token_ids")),
        "bos_token_id": top.optional_integer("bos_token_id"),
        "models": {n: read_model(Fields(v, w)) for n, v, w in top.items("models")},
        "graphs": {n: read_graph(Fields(v, w)) for n, v, w in top.items("graphs")},
        "files": {n: read_file(Fields(v, w)) for n, v, w in top.items("files")},
    }
    if top.has("engine"):
        manifest_fields["engine"] = read_engine_spec(Fields(top.take("engine"), "engine"))
    if top.has(STARTS):
        starts = tuple(as_integer(value, where) for value, where in top.elements(STARTS))
        manifest_fields[STARTS] = starts
    top.finish()
    return Manifest(**manifest_fields)
