"""The manager: declared order, failures named with their predecessors, instruments in turn."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch

from spec_compile.errors import CaptureError, PassError, PostconditionError, PreconditionError
from spec_compile.passes.base import Pass, PassResult
from spec_compile.passes.instruments import Instrument
from spec_compile.passes.manager import PassManager, order_breaches
from spec_compile.program import Program
from tests.helpers.hand_made import floats, program_of

EMPTY = Program({})


class First(Pass):
    name = "first"

    def call(self, program: Program) -> PassResult:
        return PassResult(program, 0)


class Second(First):
    name = "second"
    after: ClassVar[tuple[type[Pass], ...]] = (First,)


class Third(First):
    name = "third"
    after: ClassVar[tuple[type[Pass], ...]] = (First, Second)


class Crashes(First):
    name = "crashes"

    def call(self, program: Program) -> PassResult:
        raise ZeroDivisionError("somewhere inside")


class ReturnsNothing(First):
    name = "returns_nothing"

    def call(self, program: Program) -> PassResult:
        return None  # type: ignore[return-value]


class Demands(First):
    name = "demands"

    def requires(self, program: Program) -> None:
        self.need(program, "draft", "target")


class BreaksItsPromise(First):
    name = "breaks_its_promise"

    def ensures(self, program: Program) -> None:
        self.promise(program, "step")


class RefusesAModel(First):
    name = "refuses_a_model"

    def call(self, program: Program) -> PassResult:
        raise CaptureError("the model uses a feature; use another")


def test_every_order_breach_is_in_one_error() -> None:
    with pytest.raises(PassError) as caught:
        PassManager([Third(), Second(), First()])
    assert str(caught.value) == (
        "the pipeline breaks its order: third has to come after first; "
        "third has to come after second; second has to come after first"
    )


def test_a_constraint_on_an_absent_pass_holds() -> None:
    assert order_breaches([Third()]) == []
    assert order_breaches([First(), Second(), Third()]) == []


@pytest.mark.parametrize(
    "bad,kind,message",
    [
        (Crashes(), PassError, "pass crashes failed: somewhere inside"),
        (ReturnsNothing(), PassError, "pass returns_nothing returned NoneType, not a PassResult"),
        (Demands(), PreconditionError, "pass demands needs the graph draft, target"),
        (
            BreaksItsPromise(),
            PostconditionError,
            "pass breaks_its_promise did not make the graph step",
        ),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_failing_pass_is_named_with_its_predecessors(
    bad: Pass, kind: type[PassError], message: str
) -> None:
    with pytest.raises(kind) as caught:
        PassManager([First(), Second(), bad, Third()]).run(EMPTY)
    assert str(caught.value) == f"{message} (after first, second)"
    assert type(caught.value) is kind
    with pytest.raises(kind) as caught:
        PassManager([bad]).run(EMPTY)
    assert str(caught.value) == message


def test_errors_addressed_to_the_user_pass_through() -> None:
    with pytest.raises(CaptureError, match=r"^the model uses a feature; use another$"):
        PassManager([First(), RefusesAModel()]).run(EMPTY)


class Adds(Pass):
    name = "adds"

    def call(self, program: Program) -> PassResult:
        made = program_of(lambda t: {"y": t["x"] + 1.0}, floats("x", "B"))
        return PassResult(program.with_graph("made", made.graphs["main"]), 1)


class Diary(Instrument):
    def __init__(self) -> None:
        self.entries: list[str] = []

    def start(self, program: Program) -> None:
        self.entries.append(f"start {len(program.graphs)}")

    def before(self, each: Pass, program: Program) -> None:
        self.entries.append(f"before {each.name} {len(program.graphs)}")

    def after(self, each: Pass, program: Program, result: PassResult, seconds: float) -> None:
        before, after = len(program.graphs), len(result.program.graphs)
        self.entries.append(f"after {each.name} {before} {after}")


def test_instruments_see_every_pass_and_the_result_is_the_last_program() -> None:
    diary = Diary()
    result = PassManager([First(), Adds()], [diary]).run(EMPTY)
    assert diary.entries == [
        "start 0",
        "before first 0",
        "after first 0 0",
        "before adds 0",
        "after adds 0 1",
    ]
    assert list(result.graphs) == ["made"]
    assert result.graphs["made"].outputs[0].dtype == torch.float32
