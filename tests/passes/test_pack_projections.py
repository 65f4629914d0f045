"""`pack_projections`: layers of one tensor become one product; others stay and say why."""

from __future__ import annotations

import torch
from torch import Tensor

from spec_compile.graph_weights import weights_of
from spec_compile.passes.pack_projections import PackProjections, joined_name
from spec_compile.program import Program
from tests.helpers.hand_made import Function, count, floats, hand_made, program_of, run

aten = torch.ops.aten
X = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
INPUT = floats("x", "B", "T", 4)


def weight(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


WEIGHTS = {"q": weight(6, 4, seed=1), "k": weight(2, 4, seed=2), "v": weight(3, 4, seed=3)}


def linear(*names: str) -> Function:
    """A layer per weight, each an output."""
    return lambda t: {f"y{n}": torch.nn.functional.linear(t["x"], t[n]) for n in names}


def packed(program: Program, rewrites: int) -> tuple[Program, list[str]]:
    """The result and the reasons of near misses, checked: count, numbers, second run."""
    before, hash_before = run(program, x=X), program.structural_hash()
    result = PackProjections()(program)
    assert result.rewrites == rewrites
    assert program.structural_hash() == hash_before
    for name, value in run(result.program, x=X).items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=1e-6)
        assert value.is_contiguous() == before[name].is_contiguous()
    again = PackProjections()(result.program)
    assert again.rewrites == 0
    assert again.program.structural_hash() == result.program.structural_hash()
    return result.program, [each.reason for each in result.mismatches]


def test_layers_of_one_tensor_become_one() -> None:
    program, _ = packed(program_of(linear("q", "k", "v"), INPUT, **WEIGHTS), 1)
    assert count(program, aten.linear.default) == 1
    (whole,) = weights_of(program.graphs["main"]).values()
    assert torch.equal(whole, torch.cat(list(WEIGHTS.values())))


def test_biases_are_packed_too() -> None:
    biases = {"a": weight(6, seed=4), "b": weight(2, seed=5)}

    def function(t: dict[str, Tensor]) -> dict[str, Tensor]:
        layer = torch.nn.functional.linear
        return {"y": layer(t["x"], t["q"], t["a"]), "z": layer(t["x"], t["k"], t["b"])}

    program, _ = packed(program_of(function, INPUT, **WEIGHTS, **biases), 1)
    assert sorted(w.dim() for w in weights_of(program.graphs["main"]).values()) == [1, 2]


def test_layers_with_and_without_bias_stay_apart() -> None:
    def function(t: dict[str, Tensor]) -> dict[str, Tensor]:
        layer = torch.nn.functional.linear
        return {"y": layer(t["x"], t["q"], t["a"]), "z": layer(t["x"], t["k"])}

    packed(program_of(function, INPUT, a=weight(6, seed=4), **WEIGHTS), 0)


def test_layers_of_other_tensors_stay_apart() -> None:
    def function(t: dict[str, Tensor]) -> dict[str, Tensor]:
        layer = torch.nn.functional.linear
        return {"y": layer(t["x"], t["q"]), "z": layer(torch.sin(t["x"]), t["k"])}

    packed(program_of(function, INPUT, **WEIGHTS), 0)


def test_a_weight_that_is_read_elsewhere_stays_and_says_why() -> None:
    def function(t: dict[str, Tensor]) -> dict[str, Tensor]:
        layer = torch.nn.functional.linear
        return {"y": layer(t["x"], t["q"]), "z": layer(t["x"], t["k"]), "sum": t["k"].sum()}

    _, reasons = packed(program_of(function, INPUT, **WEIGHTS), 0)
    assert reasons == ["its weight is used elsewhere too"]


def test_a_computed_weight_stays_and_says_why() -> None:
    def function(t: dict[str, Tensor]) -> dict[str, Tensor]:
        layer = torch.nn.functional.linear
        return {"y": layer(t["x"], t["q"]), "z": layer(t["x"], torch.tanh(t["k"]))}

    _, reasons = packed(program_of(function, INPUT, **WEIGHTS), 0)
    assert reasons == ["its weight is computed, not stored"]


def test_a_graph_that_writes_in_place_stays_and_says_why() -> None:
    def function(t: dict[str, Tensor]) -> dict[str, Tensor]:
        value = t["x"] * 2.0
        first = torch.nn.functional.linear(value, t["q"])
        value.add_(1.0)
        return {"y": first, "z": torch.nn.functional.linear(value, t["k"])}

    _, reasons = packed(program_of(function, INPUT, **WEIGHTS), 0)
    assert reasons == ["aten.add_.Tensor writes in place, so the graph stays as it is"]


def test_graphs_of_one_model_share_packed_weights_and_their_name() -> None:
    graph = hand_made(linear("q", "k"), INPUT, **WEIGHTS)
    names = {w.data_ptr(): f"target.a.{n}.weight" for n, w in zip("qk", _held(graph), strict=True)}
    result = PackProjections()(Program({"verify": graph, "target": graph}, names))
    assert result.rewrites == 2
    (first,), (second,) = (weights_of(each).values() for each in result.program.graphs.values())
    assert first.data_ptr() == second.data_ptr()
    assert result.program.weight_names[first.data_ptr()] == "target.a.q+k.weight"


def _held(graph: object) -> list[Tensor]:
    weights = weights_of(graph)  # type: ignore[arg-type]
    return [next(w for w in weights.values() if torch.equal(w, WEIGHTS[n])) for n in "qk"]


def test_names_are_joined_where_they_differ() -> None:
    assert joined_name(["t.0.q.weight", "t.0.k.weight"]) == "t.0.q+k.weight"
    assert joined_name(["t.q", "t.0.k"]) == "t.q+t.0.k"
