"""What is kept of a build: its log, the layers that a graph became, the tensors of the engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from spec_compile.engine_spec import WRITTEN_AGAIN
from spec_compile.errors import BackendError
from spec_compile.program import Graph, TensorSpec

_KEPT = ("INTERNAL_ERROR", "ERROR", "WARNING", "INFO")
_DTYPES = {"FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16"}


class BuildLog:
    """Messages of one build; of the many verbose ones only the number."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.lines: list[tuple[str, str]] = []
        self.num_verbose = 0

    def add(self, severity: str, message: str) -> None:
        """Take one message."""
        if severity in _KEPT:
            self.lines.append((severity, message))
        else:
            self.num_verbose += 1

    @property
    def first_error(self) -> str:
        """The first error on one line, or a hint that there is none."""
        errors = [text for severity, text in self.lines if "ERROR" in severity]
        return " ".join(errors[0].split())[:300] if errors else "it gives no reason"

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON; where the file lay while it was built concerns nobody."""
        kept = [line for line in self.lines if "Input filename" not in line[1]]
        log = [f"{severity}: {text}" for severity, text in kept]
        return {"log": log, "num_verbose_messages": self.num_verbose}


def new_logger(trt: Any, log: BuildLog) -> Any:
    """A logger of the package `trt` that writes into `log`."""

    def start(self: Any) -> None:
        trt.ILogger.__init__(self)

    def add(self: Any, severity: Any, message: str) -> None:
        del self
        log.add(severity.name, message)

    return type("BuildLogger", (trt.ILogger,), {"__init__": start, "log": add})()


def describe_network(network: Any, graph: Graph) -> dict[str, Any]:
    """Layers and tensors of a parsed network, checked against the graph that it came from.

    Raises:
        BackendError: its tensors are not those of the graph, or the host would have to read one.
    """
    layers = Counter(network.get_layer(i).type.name for i in range(network.num_layers))
    inputs = [network.get_input(i) for i in range(network.num_inputs)]
    outputs = [network.get_output(i) for i in range(network.num_outputs)]
    again = [tensor for tensor in inputs if tensor.name.endswith(WRITTEN_AGAIN)]
    inputs = [tensor for tensor in inputs if tensor not in again]
    return {
        "layers": dict(layers.most_common()),
        "inputs": _tensors(inputs, graph.inputs),
        "inputs_written_again": [tensor.name for tensor in again],
        "outputs": _tensors(outputs, graph.outputs),
    }


def _tensors(found: Sequence[Any], specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
    """The tensors of an engine, which are those of the graph in the same order."""
    if len(found) != len(specs):
        raise BackendError(f"the engine has {len(found)} tensors where the graph has {len(specs)}")
    for tensor, spec in zip(found, specs, strict=True):
        dtype = _DTYPES.get(tensor.dtype.name, tensor.dtype.name.lower())
        sizes = tuple(-1 if isinstance(size, str) else size for size in spec.shape)
        actual, expected = (
            (tensor.name, dtype, tuple(tensor.shape)),
            (spec.name, _name(spec), sizes),
        )
        if actual != expected:
            raise BackendError(f"the engine has the tensor {actual} where the graph has {expected}")
        if tensor.is_shape_tensor:
            raise BackendError(f"the engine would read {tensor.name} on the host in every call")
    return [{"name": s.name, "dtype": _name(s), "shape": list(s.shape)} for s in specs]


def _name(spec: TensorSpec) -> str:
    return str(spec.dtype).removeprefix("torch.")
