"""`separate_heads`: a tied head gets a name of its own, and no bytes of its own."""

from __future__ import annotations

from pathlib import Path

import onnx

from spec_compile.export.backend import BuildContext
from spec_compile.export.cpu.separate_heads import SeparateHeads
from spec_compile.export.onnx_model import translate_program
from spec_compile.export.onnxruntime import write_models
from spec_compile.export.weight_names import name_weights_of
from spec_compile.program import Program
from tests.export.conftest import CONFIG, MAX_LENGTH, OnnxPair
from tests.helpers.lowering import translated
from tests.helpers.tiny_models import VOCAB_SIZE

TABLE = "target.model.embed_tokens.weight"


def places(path: Path) -> dict[str, tuple[str, str, str]]:
    """File, offset and length of every external weight."""
    found = {}
    for tensor in onnx.load(path, load_external_data=False).graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if entries:
            found[tensor.name] = (entries["location"], entries["offset"], entries["length"])
    return found


def test_a_tied_head_is_read_by_another_name_from_the_same_place(
    onnx_pair: OnnxPair, tmp_path: Path
) -> None:
    program = onnx_pair.program
    names = {**name_weights_of(onnx_pair.models), **program.weight_names}
    context = BuildContext(
        VOCAB_SIZE, names, MAX_LENGTH, CONFIG.batch_size, CONFIG.num_speculative_tokens
    )
    model = translate_program(Program({"target": program.graphs["target"]}), context)["target"]
    assert SeparateHeads()(model, context).rewrites == 1
    assert SeparateHeads()(model, context).rewrites == 0
    table, head = (model.graph.initializers[name] for name in (TABLE, f"{TABLE}.head"))
    assert {node.op_type for node in table.consumers()} == {"Gather"}
    assert {node.op_type for node in head.consumers()} <= {"Gemm", "MatMul"} and head.uses()
    write_models({"target": model}, tmp_path)
    found = places(tmp_path / "target.onnx")
    assert found[TABLE] == found[f"{TABLE}.head"]
    assert len({place[1] for place in found.values()}) == len(found) - 1


def test_an_untied_head_stays() -> None:
    _, counts = translated("llama").lowered(SeparateHeads())
    assert counts == {"separate_heads": 0}
