"""The manifest: what is written is read back, and every breach is one line naming the field."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_compile.errors import ArtifactError
from spec_compile.manifest import (
    BundleConfig,
    FileSpec,
    GraphSpec,
    Manifest,
    ModelSpec,
    TensorSpec,
)

Edit = Callable[[dict[str, Any]], Any]
K, VOCAB = 2, 9


def feed() -> list[TensorSpec]:
    """The inputs of every graph."""
    return [
        TensorSpec("tokens", "int64", ("B", "T")),
        TensorSpec("num_new", "int64", ("B",)),
        TensorSpec("lengths", "int64", ("B",)),
        TensorSpec("key_cache.0", "float32", ("B", 1, 12, 4)),
    ]


def graph(file: str, *outputs: TensorSpec, extra: tuple[TensorSpec, ...] = ()) -> GraphSpec:
    """A graph with one cache."""
    cache_out = TensorSpec("next_key_cache.0", "float32", ("B", 1, 12, 4), "key_cache.0")
    return GraphSpec(file, (*feed(), *extra), (*outputs, cache_out))


@cache
def example() -> Manifest:
    """A greedy `verify` bundle."""
    drafts = TensorSpec("draft_tokens", "int64", ("B", K))
    emitted = TensorSpec("num_emitted", "int64", ("B",))
    block = TensorSpec("output_tokens", "int64", ("B", K + 1))
    one = TensorSpec("output_tokens", "int64", ("B", 1))
    logits = TensorSpec("logits", "float32", ("B", 1, VOCAB))
    graphs = {
        "draft": graph("draft.onnx", drafts),
        "verify": graph("verify.onnx", block, emitted, extra=(drafts,)),
        "target": graph("target.onnx", one, emitted, logits),
    }
    model = ModelSpec("llama", "LlamaForCausalLM", "psf-2.0", 6, 123)
    return Manifest(
        config=BundleConfig(K, "greedy", True, "verify", "onnxruntime", "float32", 10, 8, 1),
        vocab_size=VOCAB,
        eos_token_ids=(0, 3),
        bos_token_id=None,
        models={"target": model, "draft": dataclasses.replace(model, license=None)},
        graphs=graphs,
        files={f"{name}.onnx": FileSpec("0a" * 32, 7) for name in graphs},
        created_by={"spec_compile": "0.1.0", "torch": "2.13.0"},
    )


def test_round_trip() -> None:
    manifest = example()
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_json_has_the_documented_shape() -> None:
    raw = json.loads(example().to_json())
    assert raw["format_version"] == 1
    assert raw["config"]["num_speculative_tokens"] == K
    assert raw["graphs"]["draft"]["inputs"][0] == {
        "name": "tokens",
        "dtype": "int64",
        "shape": ["B", "T"],
    }
    assert raw["graphs"]["draft"]["outputs"][-1]["alias_of"] == "key_cache.0"
    assert raw["files"]["draft.onnx"] == {"sha256": "0a" * 32, "size": 7}


def test_caches_are_the_aliased_inputs() -> None:
    assert [tensor.name for tensor in example().graphs["verify"].caches] == ["key_cache.0"]


def first_input(raw: dict[str, Any], graph_name: str, name: str) -> dict[str, Any]:
    """The JSON of an input."""
    inputs = raw["graphs"][graph_name]["inputs"]
    return next(tensor for tensor in inputs if tensor["name"] == name)


def reshape_caches(raw: dict[str, Any], shape: list[int | str]) -> None:
    """Give every cache another shape, at both ends."""
    for one in raw["graphs"].values():
        for tensor in one["inputs"] + one["outputs"]:
            if "cache" in tensor["name"]:
                tensor["shape"] = shape


def write_counts_to_lengths(raw: dict[str, Any]) -> None:
    """Call an output that is read an alias of an input of the same shape."""
    emitted = raw["graphs"]["verify"]["outputs"][1]
    emitted["alias_of"] = "lengths"


MOOD = {"name": "mood", "dtype": "float32", "shape": ["B"]}
BREACHES: list[tuple[str, Edit]] = [
    ("format_version", lambda raw: raw.update(format_version=2)),
    ("format_version", lambda raw: raw.update(format_version=0)),
    ("format_version", lambda raw: raw.update(format_version="1")),
    ("config is missing", lambda raw: raw.pop("config")),
    ("surprise", lambda raw: raw.update(surprise=1)),
    ("config.exact", lambda raw: raw["config"].update(exact=1)),
    ("config.fusion", lambda raw: raw["config"].update(fusion="cold")),
    ("config.max_length", lambda raw: raw["config"].update(max_length=K)),
    ("config.batch_size", lambda raw: raw["config"].update(batch_size=0)),
    ("num_speculative_tokens", lambda raw: raw["config"].update(num_speculative_tokens=True)),
    ("config has fields", lambda raw: raw["config"].update(num_trees=3)),
    ("vocab_size", lambda raw: raw.update(vocab_size=0)),
    ("vocab_size", lambda raw: raw.update(vocab_size=9.0)),
    ("eos_token_ids", lambda raw: raw.update(eos_token_ids=[VOCAB])),
    (r"eos_token_ids\[1\]", lambda raw: raw.update(eos_token_ids=[0, "x"])),
    ("eos_token_ids must be a list", lambda raw: raw.update(eos_token_ids=0)),
    ("bos_token_id", lambda raw: raw.update(bos_token_id=-1)),
    ("models", lambda raw: raw["models"].pop("target")),
    ("models.draft.num_layers", lambda raw: raw["models"]["draft"].update(num_layers="6")),
    ("'verify'", lambda raw: raw["graphs"].pop("verify")),
    ("graphs must be an object", lambda raw: raw.update(graphs=[])),
    ("graphs.draft.file", lambda raw: raw["graphs"]["draft"].update(file="other.onnx")),
    ("'lengths'", lambda raw: raw["graphs"]["draft"]["inputs"].pop(2)),
    ("'logits'", lambda raw: raw["graphs"]["target"]["outputs"].pop(2)),
    ("'tokens'", lambda raw: first_input(raw, "target", "tokens").update(dtype="int32")),
    ("'tokens'", lambda raw: first_input(raw, "target", "tokens").update(shape=["B", 4])),
    ("'draft_tokens'", lambda raw: first_input(raw, "verify", "draft_tokens").update(shape=["B"])),
    ("'num_new'", lambda raw: first_input(raw, "draft", "num_new").update(name="mood")),
    ("no runtime feeds", lambda raw: raw["graphs"]["draft"]["inputs"].append(MOOD)),
    ("name twice", lambda raw: first_input(raw, "draft", "num_new").update(name="tokens")),
    ("dtype", lambda raw: first_input(raw, "draft", "key_cache.0").update(dtype="object")),
    ("shape", lambda raw: first_input(raw, "draft", "key_cache.0").update(shape=["B", -1])),
    ("shape", lambda raw: first_input(raw, "draft", "key_cache.0").update(shape=["B", "Z"])),
    ("alias_of", lambda raw: first_input(raw, "draft", "key_cache.0").update(shape=["B", 7])),
    ("alias_of", lambda raw: raw["graphs"]["draft"]["outputs"][-1].update(alias_of="nix")),
    ("a cache", lambda raw: raw["graphs"]["draft"]["outputs"].pop()),
    ("at least 13 slots", lambda raw: raw["config"].update(max_length=11)),
    ("at least 12 slots", lambda raw: reshape_caches(raw, [1, 1, 12, 4])),
    ("at least 12 slots", lambda raw: reshape_caches(raw, ["B", 1, 12])),
    ("'lengths' must be of shape", lambda raw: write_counts_to_lengths(raw)),
    ("grow with T", lambda raw: reshape_caches(raw, ["B", 1, "T", 4])),
    ("larger than any memory", lambda raw: reshape_caches(raw, ["B", 1, 2**62, 4])),
    ("cannot be printed", lambda raw: raw["models"]["target"].update(source="a\nb")),
    ("cannot be printed", lambda raw: raw["models"]["target"].update(source="\ud800")),
    ("no plain text", lambda raw: raw["created_by"].update({"\x1b[31m": "1"})),
    ("sha256", lambda raw: raw["files"]["draft.onnx"].update(sha256="0A" * 32)),
    ("size", lambda raw: raw["files"]["draft.onnx"].update(size=-1)),
    ("files", lambda raw: raw["files"].update({"../x": raw["files"]["draft.onnx"]})),
    ("files", lambda raw: raw["files"].update({"a" * 5000: raw["files"]["draft.onnx"]})),
    ("files", lambda raw: raw["files"].update({"manifest.json": raw["files"]["draft.onnx"]})),
]


@pytest.mark.parametrize("named, edit", BREACHES)
def test_breach_names_the_field(named: str, edit: Edit) -> None:
    raw = json.loads(example().to_json())
    edit(raw)
    with pytest.raises(ArtifactError, match=named) as error:
        Manifest.from_json(json.dumps(raw))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


def test_a_field_that_comes_twice_is_refused() -> None:
    text = example().to_json().replace('"vocab_size"', '"vocab_size": 3, "vocab_size"')
    with pytest.raises(ArtifactError, match="'vocab_size' comes twice"):
        Manifest.from_json(text)


def test_texts_of_other_languages_are_read() -> None:
    raw = json.loads(example().to_json())
    raw["models"]["target"]["source"] = "modèle\u3000模型"
    assert Manifest.from_json(json.dumps(raw)).models["target"].source == "modèle\u3000模型"


def test_draft_law_that_verify_reads_must_be_written() -> None:
    raw = json.loads(example().to_json())
    law = {"name": "draft_probs", "dtype": "float32", "shape": ["B", K, VOCAB]}
    raw["graphs"]["verify"]["inputs"].append(law)
    with pytest.raises(ArtifactError, match="'draft_probs'"):
        Manifest.from_json(json.dumps(raw))
    raw["graphs"]["draft"]["outputs"].append(law)
    assert Manifest.from_json(json.dumps(raw)).graphs["verify"].input("draft_probs")


def test_writer_is_held_to_the_same_rules() -> None:
    with pytest.raises(ArtifactError, match="vocab_size"):
        dataclasses.replace(example(), vocab_size=0)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@settings(deadline=None)
@given(st.data())
def test_any_replaced_value_is_read_or_refused(data: st.DataObject) -> None:
    """Nothing but `ArtifactError` comes out, wherever a value is replaced by another."""
    raw = json.loads(example().to_json())
    place: Any = raw
    while isinstance(place, dict | list) and place:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or data.draw(st.booleans()):
            place[key] = data.draw(json_values)
            break
        place = place[key]
    with contextlib.suppress(ArtifactError):
        Manifest.from_json(json.dumps(raw))
