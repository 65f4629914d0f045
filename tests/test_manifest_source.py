"""The manifest of a bundle that reads source texts: every breach is one line naming the field."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from spec_compile.errors import ArtifactError
from spec_compile.manifest import BundleConfig, FileSpec, GraphSpec, Manifest, ModelSpec, TensorSpec

K, VOCAB = 2, 9
LENGTHS = TensorSpec("source_lengths", "int64", ("B",))


def cross(prefix: str, shape: tuple[int | str, ...] = ("B", 2, "N", 4)) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(f"{prefix}cross_{kind}.0", "float32", shape) for kind in ("key", "value")
    )


def encoder(prefix: str) -> GraphSpec:
    tokens = TensorSpec("source_tokens", "int64", ("B", "N"))
    return GraphSpec(f"{prefix}encoder.onnx", (tokens, LENGTHS), cross(prefix))


def decoder(
    name: str, prefix: str, *outputs: TensorSpec, extra: tuple[TensorSpec, ...] = ()
) -> GraphSpec:
    """A graph with one cache that reads the source."""
    feed = (
        TensorSpec("tokens", "int64", ("B", "T")),
        TensorSpec("num_new", "int64", ("B",)),
        TensorSpec("lengths", "int64", ("B",)),
    )
    cache = TensorSpec(f"{prefix}key_cache.0", "float32", ("B", 1, 12, 4))
    written = dataclasses.replace(cache, name=f"next_{cache.name}", alias_of=cache.name)
    inputs = (*feed, LENGTHS, *cross(prefix), cache, *extra)
    return GraphSpec(f"{name}.onnx", inputs, (*outputs, written))


def example() -> dict[str, Any]:
    """The JSON of a greedy `verify` bundle with encoders."""
    drafts = TensorSpec("draft_tokens", "int64", ("B", K))
    emitted = TensorSpec("num_emitted", "int64", ("B",))
    block = TensorSpec("output_tokens", "int64", ("B", K + 1))
    one = TensorSpec("output_tokens", "int64", ("B", 1))
    logits = TensorSpec("logits", "float32", ("B", 1, VOCAB))
    graphs = {
        "encoder": encoder(""),
        "draft_encoder": encoder("draft_"),
        "draft": decoder("draft", "draft_", drafts),
        "verify": decoder("verify", "", block, emitted, extra=(drafts,)),
        "target": decoder("target", "", one, emitted, logits),
    }
    model = ModelSpec("t5", "T5ForConditionalGeneration", None, 1, 123)
    manifest = Manifest(
        config=BundleConfig(K, "greedy", True, "verify", "onnxruntime", "float32", 10, 8, 1),
        vocab_size=VOCAB,
        eos_token_ids=(0,),
        bos_token_id=None,
        models={"target": model, "draft": model},
        graphs=graphs,
        files={graph.file: FileSpec("0a" * 32, 7) for graph in graphs.values()},
        decoder_start_ids=(1, 4),
    )
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert manifest.reads_source
    raw: dict[str, Any] = json.loads(manifest.to_json())
    return raw


def tensor(raw: dict[str, Any], graph: str, side: str, name: str) -> dict[str, Any]:
    return next(each for each in raw["graphs"][graph][side] if each["name"] == name)


def drop(raw: dict[str, Any], graph: str, side: str, *names: str) -> None:
    tensors = raw["graphs"][graph][side]
    tensors[:] = [each for each in tensors if each["name"] not in names]


BREACHES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a start outside the vocabulary": (
        lambda raw: raw.update(decoder_start_ids=[VOCAB]),
        "decoder_start_ids must hold ids below vocab_size, 9",
    ),
    "starts that fill a row": (
        lambda raw: raw.update(decoder_start_ids=[1] * 10),
        "decoder_start_ids leaves no room",
    ),
    "a start that is no number": (
        lambda raw: raw.update(decoder_start_ids=["a"]),
        "decoder_start_ids[0] must be a whole number",
    ),
    "encoders without starts": (
        lambda raw: raw.pop("decoder_start_ids"),
        "decoder_start_ids is empty, but there is a graph",
    ),
    "no encoder": (
        lambda raw: raw["graphs"].pop("encoder"),
        "graphs must have an entry 'encoder'",
    ),
    "an encoder that reads nothing": (
        lambda raw: drop(raw, "encoder", "inputs", "source_lengths"),
        "graphs.encoder.inputs must have 'source_lengths'",
    ),
    "an encoder that gives nothing": (
        lambda raw: drop(raw, "encoder", "outputs", "cross_key.0", "cross_value.0"),
        "graphs.encoder.outputs is empty",
    ),
    "an output that no graph reads": (
        lambda raw: tensor(raw, "encoder", "outputs", "cross_key.0").update(name="states"),
        "graphs.encoder.outputs has 'states', which no graph reads",
    ),
    "keys of another shape": (
        lambda raw: tensor(raw, "verify", "inputs", "cross_key.0").update(shape=["B", 3, "N", 4]),
        "graphs.verify.inputs must have 'cross_key.0' of dtype float32 and shape [B, 2, N, 4]",
    ),
    "keys that do not grow with the source": (
        lambda raw: tensor(raw, "encoder", "outputs", "cross_key.0").update(shape=["B", 2, 7, 4]),
        "graphs.encoder.outputs must have 'cross_key.0'",
    ),
    "keys that nobody gives": (
        lambda raw: tensor(raw, "draft", "inputs", "draft_cross_key.0").update(name="cross_key.5"),
        "graphs.draft.inputs has 'cross_key.5', which no encoder gives",
    ),
    "a decoder that ignores the source": (
        lambda raw: drop(raw, "target", "inputs", "source_lengths", "cross_key.0", "cross_value.0"),
        "graphs.target.inputs must have 'source_lengths'",
    ),
    "an output of a decoder that grows with the source": (
        lambda raw: tensor(raw, "target", "outputs", "logits").update(shape=["B", "N", VOCAB]),
        "graphs.target.outputs",
    ),
}


@pytest.mark.parametrize("name", BREACHES)
def test_a_breach_names_the_field(name: str) -> None:
    edit, message = BREACHES[name]
    raw = example()
    edit(raw)
    with pytest.raises(ArtifactError) as caught:
        Manifest.from_json(json.dumps(raw))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
