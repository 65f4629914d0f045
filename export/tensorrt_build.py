"""From an ONNX file to a serialized engine, with a report of what became of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spec_compile.engine_spec import Profile
from spec_compile.errors import BackendError
from spec_compile.export.tensorrt_report import BuildLog, describe_network, new_logger
from spec_compile.program import Graph

_LOG = logging.getLogger(__name__)


class EngineBuilder:
    """Builds the engines of one compile, one after the other.

    Args:
        trt: the module `tensorrt` or `tensorrt_rtx`.
        capabilities: devices to build for, as "8.9"; empty leaves the choice to the package.

    Attributes:
        timing_cache: what the package measured while building, for later builds on this device;
            empty when it measures nothing.

    Raises:
        BackendError: a device that the package does not build for, or none to build on.
    """

    def __init__(self, trt: Any, capabilities: Sequence[str]) -> None:
        self._trt, self._log = trt, BuildLog()
        self._capabilities = [_capability(trt, text) for text in capabilities]
        self.timing_cache = b""
        # TensorRT for RTX measures on the user's device instead.
        self._measures = trt.__name__ == "tensorrt"
        try:
            self._builder = trt.Builder(new_logger(trt, self._log))
        except (RuntimeError, TypeError) as error:
            problem = self._log.first_error or str(error)
            raise BackendError(f"{trt.__name__} cannot build here: {problem}") from error

    def build(
        self, path: Path, graph: Graph, profiles: Sequence[Profile]
    ) -> tuple[bytes, dict[str, Any]]:
        """Build the engine of one graph.

        Args:
            path: its ONNX file.
            graph: what the engine must take and give.
            profiles: the sizes that it must take.

        Returns:
            The serialized engine and a report, ready for JSON.

        Raises:
            BackendError: the parser or the builder refuses the graph.
        """
        self._log.clear()
        # The parser owns the weights: it must live until the engine is built.
        network, parser = self._parse(path)
        report = describe_network(network, graph)
        config = self._configure(network, profiles)
        started = time.perf_counter()
        plan = self._builder.build_serialized_network(network, config)
        seconds = time.perf_counter() - started
        del parser
        if plan is None:
            raise BackendError(
                f"{self._trt.__name__} cannot build {path.stem}: {self._log.first_error}"
            )
        if self._measures:
            self.timing_cache = bytes(config.get_timing_cache().serialize())
        engine = bytes(plan)
        _LOG.info("built %s in %.1f s, %d bytes", path.stem, seconds, len(engine))
        report |= {"seconds": round(seconds, 3), "size": len(engine), **self._log.as_dict()}
        return engine, report

    def _parse(self, path: Path) -> tuple[Any, Any]:
        trt = self._trt
        typed = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        network = self._builder.create_network(typed)
        parser = trt.OnnxParser(network, self._builder.logger)
        if not parser.parse_from_file(str(path)):
            reasons = [parser.get_error(index) for index in range(parser.num_errors)]
            where = f" at {reasons[0].node_operator()}" if reasons else ""
            text = reasons[0].desc() if reasons else self._log.first_error
            raise BackendError(f"{trt.__name__} cannot parse {path.stem}{where}: {_one_line(text)}")
        return network, parser

    def _configure(self, network: Any, profiles: Sequence[Profile]) -> Any:
        trt = self._trt
        _allow_decomposition(trt, network)
        config = self._builder.create_builder_config()
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
        # Memory of the caller's is what makes a run capturable as a CUDA graph.
        if hasattr(trt.BuilderFlag, "REQUIRE_USER_ALLOCATION"):
            config.set_flag(trt.BuilderFlag.REQUIRE_USER_ALLOCATION)
        if self._capabilities:
            config.num_compute_capabilities = len(self._capabilities)
            for index, capability in enumerate(self._capabilities):
                config.set_compute_capability(capability, index)
        for profile in profiles:
            config.add_optimization_profile(self._profile(network, profile))
        if self._measures:
            config.set_timing_cache(config.create_timing_cache(self.timing_cache), False)
        return config

    def _profile(self, network: Any, profile: Profile) -> Any:
        made = self._builder.create_optimization_profile()
        for index in range(network.num_inputs):
            tensor = network.get_input(index)
            names = [tensor.get_dimension_name(axis) for axis in range(len(tensor.shape))]
            shapes = [
                [
                    getattr(profile.rows, extreme)
                    if name == "B"
                    else getattr(profile.tokens, extreme)
                    if name == "T"
                    else size
                    for name, size in zip(names, tensor.shape, strict=True)
                ]
                for extreme in ("least", "best", "most")
            ]
            made.set_shape(tensor.name, *shapes)
        return made


def _allow_decomposition(trt: Any, network: Any) -> None:
    """Let attention without a kernel of its own (float32, say) become MatMul and softmax."""
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type == trt.LayerType.ATTENTION_INPUT:
            layer.__class__ = trt.IAttentionInputLayer
            layer.attention.decomposable = True


def _capability(trt: Any, text: str) -> Any:
    known = getattr(trt, "ComputeCapability", None)
    found = getattr(known, "SM" + text.replace(".", ""), None)
    if found is None:
        names = [name for name in dir(known) if name.startswith("SM")]
        devices = ", ".join(f"{name[2:-1]}.{name[-1]}" for name in names)
        raise BackendError(f"{trt.__name__} builds for {devices or 'this device'}, not for {text}")
    return found


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]
