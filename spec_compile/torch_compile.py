"""`torch.compile(model, backend="spec_compile")`: the rewriting passes on any captured module.

The name is found through an entry point of the package, so nothing has to be imported first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from spec_compile.errors import ConfigError
from spec_compile.passes.base import Mismatch
from spec_compile.passes.drop_dead_code import DropDeadCode, drop_dead_code
from spec_compile.passes.merge_duplicates import MergeDuplicates, merge_duplicates
from spec_compile.passes.remove_no_ops import RemoveNoOps, remove_no_ops
from spec_compile.passes.rewrite import Rewrite

_LOG = logging.getLogger(__name__)
THEN = ("inductor", "eager")
# Those of the pipeline that need no tensor roles. Packing of projections is not among them: here
# weights are arguments, which it would join again in every call.
_REWRITES: tuple[tuple[str, Rewrite], ...] = (
    (RemoveNoOps.name, remove_no_ops),
    (MergeDuplicates.name, merge_duplicates),
    (DropDeadCode.name, drop_dead_code),
)


@dataclass(frozen=True)
class Report:
    """What the passes did to one captured graph.

    Args:
        rewrites: by pass, in order.
        mismatches: why a pass left the graph as it was.
        nodes: of the graph afterwards.
    """

    rewrites: Mapping[str, int]
    mismatches: tuple[Mismatch, ...]
    nodes: int


def compile_module(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """A backend of torch.compile: captured operators, rewritten, then compiled or run as they are.

    Args:
        module: what torch captured.
        example_inputs: of its call.
        options: `then`: what comes after the passes, `inductor` (the default) or `eager`;
            `report`: called with a `Report` for every graph.

    Raises:
        ConfigError: an option that does not exist, or a value that it does not have.
    """
    left = dict(options or {})
    then, report = left.pop("then", THEN[0]), left.pop("report", _log)
    if left or then not in THEN:
        raise ConfigError(
            f"backend spec_compile takes the options then ({' or '.join(THEN)}) and report, not "
            f"{options}"
        )
    if then == "eager":
        from torch._dynamo.backends.common import aot_autograd
        from torch._functorch._aot_autograd.utils import make_boxed_func

        def run_rewritten(graph: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
            return make_boxed_func(rewritten(graph, report).forward)

        return aot_autograd(fw_compiler=run_rewritten)(module, example_inputs)

    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    def compile_rewritten(graph: fx.GraphModule, inputs: Sequence[Any], **settings: Any) -> Any:
        return compile_fx_inner(rewritten(graph, report), inputs, **settings)

    return compile_fx(module, example_inputs, inner_compile=compile_rewritten)  # type: ignore[return-value]


def rewritten(module: fx.GraphModule, report: Callable[[Report], object]) -> fx.GraphModule:
    """`module`, a functional graph of ATen operators, after the passes; edited where it is."""
    graph, mismatches = module.graph, list[Mismatch]()
    apart = _aliases(graph)
    rewrites = {name: rewrite(graph, mismatches) for name, rewrite in _REWRITES}
    _keep_apart(graph, apart)
    graph.lint()
    module.recompile()
    report(Report(rewrites, tuple(mismatches), len(graph.nodes)))
    return module


def _log(report: Report) -> None:
    _LOG.info("%d nodes after %s", report.nodes, dict(report.rewrites))


def _outputs(graph: fx.Graph) -> list[Any]:
    values = next(node for node in graph.nodes if node.op == "output").args[0]
    return list(values) if isinstance(values, list | tuple) else [values]


def _aliases(graph: fx.Graph) -> list[bool]:
    """By output: whether it is an input, or an output before it."""
    values = _outputs(graph)
    return [_repeats(values, index) for index in range(len(values))]


def _repeats(values: Sequence[Any], index: int) -> bool:
    value = values[index]
    return isinstance(value, fx.Node) and (value.op == "placeholder" or value in values[:index])


def _keep_apart(graph: fx.Graph, before: Sequence[bool]) -> None:
    """Copy outputs that the passes made one with an input or another output.

    Whoever called may write to what he gets: torch relies on what aliased before, no more.
    """
    output = next(node for node in graph.nodes if node.op == "output")
    values = _outputs(graph)
    for index, was in enumerate(before):
        if _repeats(values, index) and not was:
            with graph.inserting_before(output):
                copied = graph.call_function(torch.ops.aten.clone.default, (values[index],))
            copied.meta["val"] = values[index].meta["val"]
            values[index] = copied
    shape = type(output.args[0])
    output.args = (shape(values) if shape in (list, tuple) else values[0],)
