"""A graph to an ONNX model of standard operators: translate, simplify, fuse norms and rotary."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import onnx_ir as ir
import onnx_ir.passes.common as ir_passes
import torch
from onnxscript import optimizer
from onnxscript.rewriter import RewriteRuleSet, rewrite
from onnxscript.rewriter.rules.fusion import _rms_normalization, _rotary_embedding

from spec_compile.errors import BackendError
from spec_compile.export.backend import BuildContext
from spec_compile.export.core_aten import core_program
from spec_compile.export.onnx_operators import (
    DOMAIN,
    OPSET_VERSION,
    PROCESS_LOGITS_NAME,
    Transforms,
    process_logits_function,
    translations,
)
from spec_compile.export.onnx_rotary import cast_rotary_embedding_rule
from spec_compile.export.onnx_weights import fold_transposed_weights, name_weights
from spec_compile.export.type_promotion import promotion_by_metadata
from spec_compile.program import Graph, Program, first_line
from spec_compile.sampling import process_logits

logger = logging.getLogger(__name__)

_FUSIONS = RewriteRuleSet(
    [
        *_rms_normalization.rms_normalization_rules,
        *_rotary_embedding.rotary_embedding_rules,
        cast_rotary_embedding_rule,
        *_rotary_embedding.partial_embedding_rules,
    ]
)


class OnnxTranslator:
    """Translates the graphs of one compile; sampling is traced once for each size of vocabulary.

    Args:
        weight_names: `<owner>.<name in the checkpoint>` by the address of a weight's memory.
        transforms: the sampling transforms, in a form that the engine takes.
    """

    def __init__(
        self, weight_names: Mapping[int, str], transforms: Transforms = process_logits
    ) -> None:
        self.weight_names, self.transforms = weight_names, transforms
        self._sampling: dict[int, ir.Function] = {}

    def translate(self, graph: Graph) -> ir.Model:
        """`graph` in standard operators, with its tensors named as in the graph contract.

        Raises:
            BackendError: an operator has no ONNX form.
        """
        with _quiet():
            model = _translate(graph)
            _name_tensors(model.graph, graph)
            name_weights(model.graph, self.weight_names)
            # Before any constant folding, which would bake small weights into nameless constants.
            fold_transposed_weights(model.graph)
            _simplify(model)
            calls = [node for node in model.graph if node.op_type == PROCESS_LOGITS_NAME]
            if calls:
                self._add_sampling(model, calls)
        return model

    def _add_sampling(self, model: ir.Model, calls: list[ir.Node]) -> None:
        for node in calls:
            logits = node.inputs[0]
            assert logits is not None and logits.shape is not None
            size = int(logits.shape[-1])  # type: ignore[arg-type]
            if size not in self._sampling:
                self._sampling[size] = process_logits_function(size, self.transforms)
            function = self._sampling[size]
            node.op_type = function.name
            model.functions[function.identifier()] = function
        ir_passes.InlinePass()(model)
        # Branches of the inlined function may reuse names of the graph around them.
        ir_passes.NameFixPass()(model)
        ir_passes.RemoveUnusedNodesPass()(model)
        model.opset_imports.pop(DOMAIN, None)


def translate_program(program: Program, context: BuildContext) -> dict[str, ir.Model]:
    """Every graph of `program` in standard operators, which any ONNX engine reads.

    Raises:
        BackendError: an operator has no ONNX form.
    """
    translator = OnnxTranslator(context.weight_names)
    return {name: translator.translate(graph) for name, graph in program.graphs.items()}


def _translate(graph: Graph) -> ir.Model:
    try:
        return _export(core_program(graph))
    except Exception as error:  # noqa: BLE001 (tried again below, where a failure is raised)
        # An operator outside the usual: let torch decompose it, which takes longer.
        logger.info("decomposing the graph: %s", first_line(error))
    try:
        return _export(graph.exported)
    except Exception as error:
        raise BackendError(f"ONNX cannot express this graph: {first_line(error)}") from error


def _export(program: torch.export.ExportedProgram) -> ir.Model:
    with promotion_by_metadata():
        exported = torch.onnx.export(
            program,
            dynamo=True,
            optimize=False,
            opset_version=OPSET_VERSION,
            custom_translation_table=dict(translations()),
            verbose=False,
        )
    assert exported is not None
    return exported.model


def _name_tensors(target: ir.Graph, graph: Graph) -> None:
    for values, specs in ((target.inputs, graph.inputs), (target.outputs, graph.outputs)):
        for value, spec in zip(values, specs, strict=True):
            value.name = spec.name
            value.shape = ir.Shape(list(spec.shape))


def _simplify(model: ir.Model) -> None:
    optimizer.fold_constants(model)
    rewrite(model, _FUSIONS)
    _drop_unused_attention_outputs(model.graph)
    ir_passes.CommonSubexpressionEliminationPass()(model)
    ir_passes.RemoveUnusedNodesPass()(model)
    for node in model.graph:
        node.metadata_props.clear()


def _drop_unused_attention_outputs(graph: ir.Graph) -> None:
    """An engine computes every named output: keep attention's first only."""
    for node in graph:
        if node.op_type == "Attention" and not any(value.uses() for value in node.outputs[1:]):
            node.resize_outputs(1)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's notices, which concern its own developers, away from the user."""
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(level)
