"""The verifier: each rule, broken on purpose, is named with graph and offender."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from spec_compile.errors import VerifierError
from spec_compile.ops import CACHED_ATTENTION
from spec_compile.passes.verifier import INVARIANTS, verify
from spec_compile.program import Graph, Program, TensorSpec
from tests.helpers.hand_made import floats, hand_made, integers

SLOTS = 6
INPUTS = (
    floats("x", "B", 2, "T", 4),
    integers("lengths", "B"),
    floats("key_cache.0", "B", 2, SLOTS, 4),
    floats("value_cache.0", "B", 2, SLOTS, 4),
)


def attend(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    x, lengths = tensors["x"], tensors["lengths"]
    mask = torch.ones(1, 1, 1, SLOTS, dtype=torch.bool).expand(-1, -1, x.shape[2], -1)
    caches = (tensors["key_cache.0"], tensors["value_cache.0"])
    output, keys, values = CACHED_ATTENTION(x, x, x, *caches, lengths, mask, 0.5, 0.0)
    return {"y": output, "next_key_cache.0": keys, "next_value_cache.0": values}


GOOD = hand_made(attend, *INPUTS)


def plain(graph_input: TensorSpec = INPUTS[0]) -> Graph:
    return hand_made(lambda t: {"y": t["x"] + 1.0}, graph_input)


def random_graph() -> Graph:
    return hand_made(lambda t: {"y": t["x"] + torch.rand_like(t["x"])}, INPUTS[0])


@torch.library.custom_op("verifier_test::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2.0


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def foreign_graph() -> Graph:
    return hand_made(lambda t: {"y": torch.ops.verifier_test.twice(t["x"])}, INPUTS[0])


def forgetful_graph() -> Graph:
    outputs = tuple(replace(spec, alias_of=None) for spec in GOOD.outputs)
    return replace(GOOD, outputs=outputs)


def shrinking_graph() -> Graph:
    """The cache comes back with a slot less."""

    def cut(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        outputs = attend(tensors)
        return outputs | {"next_key_cache.0": outputs["next_key_cache.0"][:, :, 1:]}

    return hand_made(cut, *INPUTS)


def peeking_graph() -> Graph:
    """Something besides attention reads a cache."""

    def peek(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        outputs = attend(tensors)
        return outputs | {"y": outputs["y"] + tensors["value_cache.0"].sum()}

    return hand_made(peek, *INPUTS)


def retold(graph: Graph, name: str, **changes: object) -> Graph:
    """`graph` whose tensor table says something else about one tensor."""

    def tell(specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return tuple(replace(s, **changes) if s.name == name else s for s in specs)  # type: ignore[arg-type]

    return replace(graph, inputs=tell(graph.inputs), outputs=tell(graph.outputs))


BROKEN: dict[str, tuple[Graph, str, str]] = {
    "an input missing from the table": (
        replace(GOOD, inputs=GOOD.inputs[:-1]),
        "inputs match the tensor table",
        "4 inputs but 3 entries in the tensor table",
    ),
    "an input of another type": (
        retold(GOOD, "lengths", dtype=torch.int32),
        "inputs match the tensor table",
        "lengths is torch.int64, the tensor table says torch.int32",
    ),
    "an input of another size": (
        retold(GOOD, "x", shape=("B", 3, "T", 4)),
        "inputs match the tensor table",
        "x is ",
    ),
    "a free size that is fixed": (
        retold(GOOD, "x", shape=("B", 2, 7, 4)),
        "inputs match the tensor table",
        "the tensor table says ['B', 2, 7, 4]",
    ),
    "an output missing from the table": (
        replace(GOOD, outputs=GOOD.outputs[:-1]),
        "outputs match the tensor table",
        "3 outputs but 2 entries in the tensor table",
    ),
    "an output of another rank": (
        retold(GOOD, "y", shape=("B", 2)),
        "outputs match the tensor table",
        "the tensor table says ['B', 2]",
    ),
    "a random operator": (random_graph(), "all randomness is an input", "draws random numbers"),
    "a foreign operator": (foreign_graph(), "only known operators", "verifier_test.twice"),
    "a cache that is not updated": (
        forgetful_graph(),
        "every cache is updated",
        "key_cache.0 has no updated output",
    ),
    "a cache that changes its shape": (
        shrinking_graph(),
        "every cache is updated",
        "key_cache.0 changes its shape",
    ),
    "a cache that is read": (
        peeking_graph(),
        "only attention reads a cache",
        "value_cache.0 is read by sum",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_named(name: str) -> None:
    graph, rule, offender = BROKEN[name]
    with pytest.raises(VerifierError) as caught:
        verify(Program({"fine": plain(), "bad": graph}))
    message = str(caught.value)
    assert message.startswith(f"graph bad breaks the rule '{rule}': ")
    assert offender in message


def test_every_rule_is_broken_above() -> None:
    assert {rule for _, rule, _ in BROKEN.values()} == {rule.name for rule in INVARIANTS}


def test_a_good_graph_passes() -> None:
    verify(Program({"good": GOOD, "plain": plain()}))
