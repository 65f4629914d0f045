"""Graphs of several drafts, lowered: caches are read up to the longest row, whatever the tree."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import onnx_ir as ir
import pytest
import torch
from torch import Tensor

from spec_compile.config import SpecConfig
from spec_compile.export.backend import BuildContext
from spec_compile.export.cpu.group_attention import GroupAttention
from spec_compile.export.cpu.lowering import Lowered
from spec_compile.export.cpu.pipeline import lower_for_cpu
from spec_compile.export.cpu.slice_caches import SliceCaches
from spec_compile.export.onnx_model import translate_program
from spec_compile.export.weight_names import name_weights_of
from spec_compile.program import Graph, Program
from tests.helpers.captured import (
    capture_model,
    eager_model,
    empty_caches,
    random_tokens,
    run_pipeline,
)
from tests.helpers.lowering import MODELS, as_file, nodes_of, operators
from tests.helpers.tiny_models import VOCAB_SIZE

MAX_LENGTH, LAYERS, BATCH_SIZE = 32, 2, 4
# Layers whose window is as long as a row: new tokens see all that is before them.
CAUSAL_LAYERS = {"llama": 2, "mistral": 0, "gpt2": 2, "gemma2": 1}


class Case(NamedTuple):
    """A pair of one kind of model, with sliding windows in gemma2 and mistral."""

    kind: str
    num_drafts: int
    num_steps: int
    acceptance: str
    fusion: str


CASES = (
    Case("llama", 2, 3, "fanout", "step"),
    Case("mistral", 3, 3, "kseq", "verify"),
    Case("gpt2", 3, 1, "fanout", "verify"),
    Case("gemma2", 2, 1, "kseq", "step"),
)


class Rows(NamedTuple):
    """What a call feeds: of T tokens, `num_new` of each row behind its `lengths` entries."""

    num_tokens: int
    num_new: tuple[int, ...]
    lengths: tuple[int, ...]


RAGGED = Rows(4, (4, 2, 1, 0), (0, 3, 9, 0))
ROWS = (RAGGED, Rows(1, (1, 0, 1), (8, 0, 2)), Rows(3, (3,), (0,)), Rows(3, (2,), (7,)))
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))


@dataclass(frozen=True)
class Translated:
    """The graphs of a bundle, and their models in standard operators."""

    graphs: dict[str, Graph]
    context: BuildContext
    standard: dict[str, ir.Model]

    def copies(self) -> dict[str, ir.Model]:
        """Models to edit."""
        return {name: model.clone() for name, model in self.standard.items()}


@cache
def translated(case: Case) -> Translated:
    kind, options = MODELS[case.kind]
    config = SpecConfig(
        num_speculative_tokens=case.num_steps,
        num_drafts=case.num_drafts,
        acceptance=case.acceptance,
        fusion=case.fusion,
        batch_size=BATCH_SIZE,
    )
    models = {
        name: eager_model(kind, seed=seed, num_hidden_layers=LAYERS, **options)
        for seed, name in enumerate(("target", "draft"))
    }
    graphs = {
        name: capture_model(
            model,
            max_length=MAX_LENGTH,
            slots=MAX_LENGTH + case.num_drafts * case.num_steps,
            batch_size=config.batch_size,
            prefix="" if name == "target" else "draft_",
            tree=True,
        )
        for name, model in models.items()
    }
    program = run_pipeline(Program(graphs, name_weights_of(models)), config, MAX_LENGTH)
    context = BuildContext(
        VOCAB_SIZE,
        program.weight_names,
        MAX_LENGTH,
        config.batch_size,
        config.num_speculative_tokens,
    )
    return Translated(dict(program.graphs), context, translate_program(program, context))


def sliced(case: Case) -> tuple[dict[str, ir.Model], dict[str, Lowered]]:
    found = translated(case)
    models = found.copies()
    return models, {name: SliceCaches()(each, found.context) for name, each in models.items()}


def a_call(graph: Graph, rows: Rows) -> dict[str, Tensor]:
    """Inputs of one call; noise is as good a history as any, and lies in all other slots too."""
    count = len(rows.num_new)
    generator = torch.Generator().manual_seed(5)
    shapes = {spec.name: [s for s in spec.shape if isinstance(s, int)] for spec in graph.inputs}
    tensors = {
        "tokens": random_tokens(count, rows.num_tokens, seed=1),
        "num_new": torch.tensor(rows.num_new),
        "lengths": torch.tensor(rows.lengths),
        "temperature": torch.tensor([1.0, 0.7, 0.0, 1.0])[:count],
        "top_k": torch.tensor([0, 9, 0, 0])[:count],
        "top_p": torch.tensor([1.0, 0.9, 1.0, 1.0])[:count],
        "min_p": torch.zeros(count),
        "uniforms": torch.rand(count, *shapes["uniforms"], generator=generator),
    }
    if "draft_tokens" in shapes:
        probs = torch.rand(count, *shapes["draft_probs"], generator=generator)
        tensors["draft_tokens"] = random_tokens(count, *shapes["draft_tokens"], seed=2)
        tensors["draft_probs"] = probs / probs.sum(dim=-1, keepdim=True)
    return tensors | empty_caches(graph, count)


def spoiled(tensors: dict[str, Tensor], case: Case) -> dict[str, Tensor]:
    """Caches with NaN where not even the longest row's drafts reach: whoever reads it shows it."""
    written = tensors["tokens"].shape[1] + case.num_drafts * case.num_steps
    end = int(tensors["lengths"].max()) + written
    caches = {name: value.clone() for name, value in tensors.items() if "_cache." in name}
    for value in caches.values():
        value[:, :, end:] = float("nan")
    return tensors | caches


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, rtol=0, atol=1e-4, equal_nan=True)


@every_case
def test_every_attention_is_sliced(case: Case) -> None:
    _, results = sliced(case)
    for name, result in results.items():
        assert result.misses == []
        calls = {"draft": case.num_steps, "step": case.num_steps + 1}.get(name, 1)
        assert result.rewrites == calls * LAYERS


@every_case
def test_sliced_graphs_compute_the_same_padding_included(case: Case, tmp_path: Path) -> None:
    found = translated(case)
    models, _ = sliced(case)
    for name, graph in found.graphs.items():
        standard = as_file(found.standard[name].clone(), graph, tmp_path / f"{name}.standard")
        lowered = as_file(models[name], graph, tmp_path / f"{name}.sliced")
        tensors = a_call(graph, RAGGED)
        expected = standard(tensors)
        assert_same(lowered(tensors), expected)
        spoil = lowered(spoiled(tensors, case))
        fresh = {key: value for key, value in expected.items() if "_cache." not in key}
        assert_same({key: spoil[key] for key in fresh}, fresh)


@every_case
def test_all_lowerings_keep_what_counts(case: Case, tmp_path: Path) -> None:
    found = translated(case)
    models = found.copies()
    lower_for_cpu(models, found.context)
    for name, graph in found.graphs.items():
        standard = as_file(found.standard[name].clone(), graph, tmp_path / f"{name}.standard")
        lowered = as_file(models[name], graph, tmp_path / f"{name}.lowered")
        for rows in ROWS:
            tensors = a_call(graph, rows)
            assert_same(counted(lowered(tensors), rows), counted(standard(tensors), rows))


def counted(outputs: dict[str, Tensor], rows: Rows) -> dict[str, Tensor]:
    """What is read of rows that go on: of caches, the entries of committed tokens."""
    num_new, lengths = torch.tensor(rows.num_new), torch.tensor(rows.lengths)
    found = {}
    for name, value in outputs.items():
        if "_cache." in name:
            valid = torch.arange(value.shape[2]) < (lengths + num_new)[:, None]
            value = value.where(valid[:, None, :, None], 0.0)
        found[name] = value[num_new > 0]
    return found


@every_case
def test_only_new_tokens_are_grouped(case: Case) -> None:
    """By `target`, and by the first call of the draft: drafts do not see each other."""
    found = translated(case)
    for name, model in found.copies().items():
        result = GroupAttention()(model, found.context)
        assert result.rewrites == (0 if name == "verify" else CAUSAL_LAYERS[case.kind])
        rotary = ["do_rotary" in node.attributes for node in nodes_of(model, "GroupQueryAttention")]
        assert rotary == [case.kind != "gpt2"] * result.rewrites


@every_case
def test_a_second_run_does_nothing(case: Case) -> None:
    found = translated(case)
    models = found.copies()
    lower_for_cpu(models, found.context)
    before = {name: operators(model) for name, model in models.items()}
    assert set(lower_for_cpu(models, found.context).values()) == {0}
    assert {name: operators(model) for name, model in models.items()} == before
