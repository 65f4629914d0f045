"""The TensorRT backends: one serialized engine a graph, through the ONNX parser.

TensorRT for RTX builds ahead of time on any machine, for a range of devices; TensorRT builds for
the device that it finds, so it needs one. Both have the same interface and share this code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import onnx_ir as ir

from spec_compile.engine_spec import EMBEDDED, EngineSpec, Profile, Sizes
from spec_compile.errors import BackendError
from spec_compile.export.backend import BuildContext
from spec_compile.export.onnx_model import OnnxTranslator
from spec_compile.export.onnx_weights import store_weights
from spec_compile.export.tensorrt_build import EngineBuilder
from spec_compile.export.tensorrt_device import device_capability
from spec_compile.export.tensorrt_lowering import lower_for_tensorrt
from spec_compile.export.tensorrt_sampling import process_logits_by_halving
from spec_compile.program import Graph, Program

REPORT_FILE = "engine_report.json"
TIMING_CACHE_FILE = "timing.cache"
_PROMPT_TOKENS = 128  # what the profile of prompts is tuned for


class TensorRtRtxBackend:
    """TensorRT for RTX; see `Backend`.

    Raises:
        BackendError: its package is not installed.
    """

    name: ClassVar[str] = "tensorrt-rtx"
    package: ClassVar[str] = "tensorrt_rtx"
    install: ClassVar[str] = "pip install 'spec-compile[tensorrt-rtx]'"

    def __init__(self) -> None:
        self.modules = ("onnx", "onnxscript", "onnx_ir", self.package)
        self.engine: EngineSpec | None = None
        self._trt = _import_package(self.package, self.install)

    def build(self, program: Program, context: BuildContext, folder: Path) -> Mapping[str, str]:
        """Translate, lower, parse and build every graph; see `Backend.build`."""
        profiles = {n: _profiles(n, graph, context) for n, graph in program.graphs.items()}
        builder = EngineBuilder(self._trt, self._targets(context))
        reports = {}
        with TemporaryDirectory(dir=folder, prefix=".onnx.") as scratch:
            files = write_onnx(program, context, Path(scratch))
            for name, graph in program.graphs.items():
                plan, reports[name] = builder.build(files[name], graph, profiles[name])
                (folder / f"{name}.engine").write_bytes(plan)
                del plan
        if builder.timing_cache:
            (folder / TIMING_CACHE_FILE).write_bytes(builder.timing_cache)
        self.engine = EngineSpec(
            package=self.package,
            version=str(self._trt.__version__),
            compute_capabilities=self._capabilities(context),
            weights=EMBEDDED,
            profiles=profiles,
        )
        report = {**self.engine.as_dict(), "graphs": reports}
        (folder / REPORT_FILE).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        return {name: f"{name}.engine" for name in program.graphs}

    def _targets(self, context: BuildContext) -> tuple[str, ...]:
        return context.compute_capabilities

    def _capabilities(self, context: BuildContext) -> tuple[str, ...]:
        return context.compute_capabilities


class TensorRtBackend(TensorRtRtxBackend):
    """TensorRT; see `Backend`.

    Raises:
        BackendError: its package is not installed, or there is no device to build for.
    """

    name = "tensorrt"
    package = "tensorrt"
    install = "pip install 'spec-compile[tensorrt]'"

    def __init__(self) -> None:
        super().__init__()
        self._device = device_capability()

    def _targets(self, context: BuildContext) -> tuple[str, ...]:
        return ()

    def _capabilities(self, context: BuildContext) -> tuple[str, ...]:
        return (self._device,)


def write_onnx(program: Program, context: BuildContext, folder: Path) -> dict[str, Path]:
    """Write every graph of `program` as ONNX that TensorRT parses.

    Returns:
        The ONNX file of each graph; its weights lie beside it.
    """
    translator = OnnxTranslator(context.weight_names, process_logits_by_halving)
    models = {name: translator.translate(graph) for name, graph in program.graphs.items()}
    for model in models.values():
        lower_for_tensorrt(model)
    store_weights(models, folder)
    for name, model in models.items():
        ir.save(model, folder / f"{name}.onnx")
    return {name: folder / f"{name}.onnx" for name in models}


def _profiles(name: str, graph: Graph, context: BuildContext) -> tuple[Profile, ...]:
    """Rounds, which feed 1 or 2 tokens again and never more than k + 1; and prompts."""
    rows = Sizes(1, 1, context.batch_size)
    most = min(max(2, context.num_speculative_tokens + 1), context.max_length)
    usual = 2 if name in ("draft", "step") else 1
    if any(spec.name == "draft_tokens" and len(spec.shape) == 3 for spec in graph.outputs):
        usual = most  # a draft engine of several drafts reads again all that was emitted
    prompt = min(_PROMPT_TOKENS, context.max_length)
    return (
        Profile(rows, Sizes(1, usual, most)),
        Profile(rows, Sizes(1, prompt, context.max_length)),
    )


def _import_package(package: str, install: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        raise BackendError(f"{package} is not installed; run: {install}") from error
    except (OSError, RuntimeError) as error:  # a library of its that cannot be loaded
        raise BackendError(f"{package} cannot be loaded ({error}); install it again") from error
