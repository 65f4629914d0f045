"""Toy bundles as a TensorRT backend would write them: an engine file is the lowered ONNX file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from spec_compile.engine_spec import EMBEDDED, EngineSpec, Profile, Sizes
from spec_compile.export.tensorrt_lowering import separate_cache_writes
from tests.helpers.toy_bundle import Toy, file_spec, write_toy_bundle


def write_toy_engines(toy: Toy, folder: Path, *, capabilities: tuple[str, ...] = ()) -> Path:
    """Write the bundle of `toy` into the new folder `folder`, for the backend tensorrt-rtx."""
    write_toy_bundle(replace(toy, any_length=False), folder)
    raw = json.loads((folder / "manifest.json").read_text())
    for name, graph in raw["graphs"].items():
        model = ir.load(folder / graph["file"])
        separate_cache_writes(model.graph)
        (folder / graph["file"]).unlink()
        graph["file"] = f"{name}.engine"
        ir.save(model, folder / graph["file"])
    raw["config"]["backend"] = "tensorrt-rtx"
    rows = Sizes(1, 1, toy.batch_size)
    profiles = (
        Profile(rows, Sizes(1, 2, toy.k + 1)),
        Profile(rows, Sizes(1, 8, toy.max_length)),
    )
    raw["engine"] = EngineSpec(
        package="tensorrt_rtx",
        version="1.7.1.116",
        compute_capabilities=capabilities,
        weights=EMBEDDED,
        profiles=dict.fromkeys(raw["graphs"], profiles),
    ).as_dict()
    files = [path for path in sorted(folder.iterdir()) if path.name != "manifest.json"]
    raw["files"] = {path.name: vars(file_spec(path)) for path in files}
    (folder / "manifest.json").write_text(json.dumps(raw))
    return folder
