"""A bundle that was moved works; one that was damaged or tampered with is one clear line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from spec_compile.errors import ArtifactError, SpecCompileError
from spec_compile.runtime.api import load
from spec_compile.runtime.loader import open_bundle
from tests.helpers.toy_bundle import VOCAB, Toy, file_spec, write_toy_bundle

TOY = Toy()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bundle to damage."""
    return write_toy_bundle(TOY, tmp_path / "bundle")


def edit_manifest(folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest's JSON."""
    path = folder / "manifest.json"
    raw = json.loads(path.read_text())
    edit(raw)
    path.write_text(json.dumps(raw))


def refresh(folder: Path, name: str) -> None:
    """Make the manifest agree with a changed file."""
    spec = file_spec(folder / name)
    edit_manifest(folder, lambda raw: raw["files"].update({name: vars(spec)}))


def refusal(folder: Path, *, verify_hash: bool = True) -> str:
    """The one line with which a bundle is refused, at loading or at the first use of its graphs."""
    with pytest.raises(SpecCompileError) as error:
        load(folder, num_threads=1, verify_hash=verify_hash).generate([1, 2])
    assert "\n" not in str(error.value)
    return str(error.value)


def test_moved_bundle_works(folder: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / "name with space"
    shutil.copytree(folder, moved)
    shutil.rmtree(folder)
    result = load(moved, num_threads=1).generate([1, 2], max_new_tokens=5, ignore_eos=True)
    assert list(result.token_ids) == TOY.target.greedy([1, 2], 5)


def test_linked_bundle_works(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder, target_is_directory=True)
    assert open_bundle(link).manifest.vocab_size == 14


def test_missing_bundle(tmp_path: Path) -> None:
    assert "no such bundle" in refusal(tmp_path / "nowhere")
    assert "not a bundle" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["verify.onnx", "target.onnx", "tokenizer.json"])
def test_missing_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert f"{name}: missing" in refusal(folder)


@pytest.mark.parametrize("verify_hash", [True, False])
def test_truncated_file(folder: Path, verify_hash: bool) -> None:
    path = folder / "draft.onnx"
    path.write_bytes(path.read_bytes()[:-10])
    assert "draft.onnx: has" in refusal(folder, verify_hash=verify_hash)


@pytest.mark.parametrize("keep", [0, 1, 100, 3000, -1])
def test_truncated_onnx_that_the_manifest_agrees_with(folder: Path, keep: int) -> None:
    path = folder / "verify.onnx"
    path.write_bytes(path.read_bytes()[:keep])
    refresh(folder, "verify.onnx")
    assert "verify.onnx" in refusal(folder)


def test_wrong_hash(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(path.read_text().replace("<eos>", "<EOS>"))
    assert "SHA-256" in refusal(folder)
    load(folder, verify_hash=False)


def test_link_out_of_the_bundle(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "secret.json"
    shutil.move(folder / "tokenizer.json", outside)
    (folder / "tokenizer.json").symlink_to(outside)
    assert "leaves the bundle" in refusal(folder)


@pytest.mark.parametrize("name", ["../x", "/etc/hosts", "a/../../x", "C:\\x", "a//b", "./a", ""])
def test_path_out_of_the_bundle(folder: Path, name: str) -> None:
    edit_manifest(folder, lambda raw: raw["files"].update({name: {"sha256": "0" * 64, "size": 1}}))
    assert "inside the bundle" in refusal(folder)


@pytest.mark.parametrize("version", [2, 99])
def test_newer_format(folder: Path, version: int) -> None:
    edit_manifest(folder, lambda raw: raw.update(format_version=version))
    message = refusal(folder)
    assert f"is {version}" in message
    assert "reads version 1" in message


@pytest.mark.parametrize("location", ["other.weights", "../other.weights"])
def test_unlisted_external_data(folder: Path, location: str) -> None:
    path = folder / "verify.onnx"
    model = onnx.load(path)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    onnx.save(model, path)
    refresh(folder, "verify.onnx")
    (folder / "other.weights").write_bytes(bytes(4096))
    assert "does not list" in refusal(folder)


def test_external_data_that_is_listed(folder: Path) -> None:
    path = folder / "verify.onnx"
    onnx.save(
        onnx.load(path),
        path,
        save_as_external_data=True,
        location="verify.weights",
        size_threshold=1024,
    )
    for name in ("verify.onnx", "verify.weights"):
        refresh(folder, name)
    result = load(folder, num_threads=1).generate([1, 2], max_new_tokens=5, ignore_eos=True)
    assert list(result.token_ids) == TOY.target.greedy([1, 2], 5)
    (folder / "verify.weights").unlink()
    assert "verify.weights: missing" in refusal(folder)


def test_tensor_table_must_be_the_graphs_own(folder: Path) -> None:
    def edit(raw: dict[str, Any]) -> None:
        for graph in raw["graphs"].values():
            for tensor in graph["inputs"] + graph["outputs"]:
                if "cache" in tensor["name"]:
                    tensor["shape"][2] += 1

    edit_manifest(folder, edit)
    assert "not as in the manifest" in refusal(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00", "[" * 100_000])
def test_manifest_that_is_no_manifest(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_text(text)
    assert "manifest.json" in refusal(folder)


def test_manifest_that_is_no_text(folder: Path) -> None:
    (folder / "manifest.json").write_bytes(b"\xff\xfe{}")
    assert "UTF-8" in refusal(folder)


def test_backend_of_another_time(folder: Path) -> None:
    edit_manifest(folder, lambda raw: raw["config"].update(backend="abacus"))
    assert "'abacus'" in refusal(folder)


def test_only_listed_files_are_handed_out(folder: Path) -> None:
    (folder / "note.txt").write_text("x")
    with pytest.raises(ArtifactError, match=r"note\.txt"):
        open_bundle(folder).path("note.txt")


@pytest.mark.parametrize("shift", [VOCAB, -VOCAB])
def test_tokens_that_no_vocabulary_has(folder: Path, shift: int) -> None:
    path = folder / "verify.onnx"
    model = onnx.load(path)
    for node in model.graph.node:
        node.output[:] = ["emitted" if name == "output_tokens" else name for name in node.output]
        node.input[:] = ["emitted" if name == "output_tokens" else name for name in node.input]
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(shift), "shift"))
    model.graph.node.append(onnx.helper.make_node("Add", ["emitted", "shift"], ["output_tokens"]))
    onnx.save(model, path)
    refresh(folder, path.name)
    assert "outside the vocabulary 0..13" in refusal(folder)
