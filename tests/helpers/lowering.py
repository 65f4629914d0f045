"""Tiny models translated to standard ONNX, lowered, and run with both forms side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor

from spec_compile.export.backend import BuildContext
from spec_compile.export.cpu.lowering import Lowering
from spec_compile.export.cpu.pipeline import lower_for_cpu
from spec_compile.export.onnx_model import translate_program
from spec_compile.export.onnxruntime import write_models
from spec_compile.export.weight_names import name_weights_of
from spec_compile.passes.merge_duplicates import MergeDuplicates
from spec_compile.passes.pack_projections import PackProjections
from spec_compile.passes.remove_no_ops import RemoveNoOps
from spec_compile.program import Graph, Program
from tests.helpers.captured import (
    capture_model,
    eager_model,
    empty_caches,
    random_tokens,
    updated_caches,
)
from tests.helpers.onnx_files import OnnxFile
from tests.helpers.tiny_models import VOCAB_SIZE

WINDOW = 4
MAX_LENGTH = 32
# Heads of 16 are wide enough for the engine's own rotary embedding, those of 8 are not.
MODELS: Mapping[str, tuple[str, dict[str, Any]]] = MappingProxyType(
    {
        "llama": ("llama", {"head_dim": 16}),
        "narrow": ("llama", {"tie_word_embeddings": True}),
        "qwen2": ("qwen2", {}),
        "qwen3": ("qwen3", {"head_dim": 16}),
        "mistral": ("mistral", {"head_dim": 16, "sliding_window": WINDOW}),
        "wide_window": ("mistral", {"head_dim": 16, "sliding_window": 3 * MAX_LENGTH}),
        "gemma2": (
            "gemma2",
            {
                "head_dim": 16,
                "sliding_window": WINDOW,
                "attn_logit_softcapping": 1.5,
                "final_logit_softcapping": 2.0,
            },
        ),
        "phi3": (
            "phi3",
            {"partial_rotary_factor": 0.5, "num_attention_heads": 2, "num_key_value_heads": 1},
        ),
        "gpt2": ("gpt2", {}),
    }
)
LENGTHS = (6, 1, 3)


@dataclass(frozen=True)
class Translated:
    """A captured model in standard operators; edit the model only through `lowered`."""

    graph: Graph
    context: BuildContext
    standard: ir.Model

    def lowered(self, *lowerings: Lowering) -> tuple[ir.Model, dict[str, int]]:
        """A copy with `lowerings`, all of them by default, and what each did."""
        model = self.standard.clone()
        chosen = lowerings or None
        return model, lower_for_cpu({"target": model}, self.context, chosen)


@cache
def translated(name: str, batch_size: int = 8) -> Translated:
    """The model of MODELS called `name`, captured and translated once for all tests."""
    kind, options = MODELS[name]
    model = eager_model(kind, **options)
    program = Program({"target": capture_model(model)}, name_weights_of({"target": model}))
    for each in (PackProjections(), RemoveNoOps(), MergeDuplicates()):
        program = each(program).program
    context = BuildContext(VOCAB_SIZE, program.weight_names, MAX_LENGTH, batch_size, 2)
    standard = translate_program(program, context)["target"]
    return Translated(program.graphs["target"], context, standard)


def as_file(model: ir.Model, graph: Graph, folder: Path) -> OnnxFile:
    """`model`, written to `folder`, in ONNX Runtime."""
    folder.mkdir(parents=True, exist_ok=True)
    return OnnxFile(folder / write_models({"target": model}, folder)["target"], graph)


def two_calls(run: OnnxFile, rows: int, num_new: int) -> dict[str, Tensor]:
    """A prefill of 6 tokens, then `num_new` tokens behind LENGTHS entries: what may be read.

    Logits, and of the caches the entries in use: nobody reads the others.
    """
    prefix, new = random_tokens(rows, 6, seed=1), random_tokens(rows, num_new, seed=2)
    lengths = torch.tensor(LENGTHS[:rows])
    first = run({"tokens": prefix, "lengths": lengths * 0, **empty_caches(run.graph, rows)})
    caches = updated_caches(run.graph, first)
    outputs = run({"tokens": new, "lengths": lengths, **caches})
    return {name: used(value, num_new) for name, value in outputs.items()}


def used(value: Tensor, num_new: int) -> Tensor:
    """`value` with the unused entries zeroed if it is a cache [B, H, S, D]."""
    if value.dim() != 4:
        return value
    slots = torch.arange(value.shape[2])
    valid = slots < (torch.tensor(LENGTHS[: len(value)])[:, None] + num_new)
    return value.where(valid[:, None, :, None], 0.0)


def operators(model: ir.Model) -> Counter[str]:
    """How often each operator stands in `model`, branches included."""
    return Counter(node.op_type for node in model.graph.all_nodes())


def nodes_of(model: ir.Model, op_type: str) -> Iterator[ir.Node]:
    """The nodes that are an `op_type`, branches included."""
    return (node for node in model.graph.all_nodes() if node.op_type == op_type)


def sizes(values: Sequence[ir.Value | None]) -> list[bool]:
    """Which of `values` are given."""
    return [value is not None for value in values]
