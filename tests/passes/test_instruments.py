"""Instruments: timing, explanations, dumps of changed programs, and lies found out."""

from __future__ import annotations

from pathlib import Path

import pytest

from spec_compile.errors import PassError, VerifierError
from spec_compile.passes.base import Mismatch, Pass, PassResult
from spec_compile.passes.instruments import Dump, Explain, Timing, Verify
from spec_compile.passes.manager import PassManager
from spec_compile.program import Program
from tests.helpers.hand_made import floats, program_of

CAPTURED = program_of(lambda t: {"y": t["x"] + 1.0}, floats("x", "B"))
OTHER = program_of(lambda t: {"y": t["x"] * 2.0}, floats("x", "B"))


class Says(Pass):
    """Returns `program` and claims `rewrites`."""

    name = "says"

    def __init__(self, program: Program, rewrites: int, *mismatches: Mismatch) -> None:
        self.result = PassResult(program, rewrites, mismatches)

    def call(self, program: Program) -> PassResult:
        return self.result


CHANGES, KEEPS = Says(OTHER, 3), Says(CAPTURED, 0)


def test_timing_keeps_one_row_a_pass() -> None:
    timing = Timing()
    PassManager([KEEPS, CHANGES], [timing]).run(CAPTURED)
    assert [(name, rewrites) for name, rewrites, _ in timing.rows] == [("says", 0), ("says", 3)]
    assert all(seconds >= 0 for _, _, seconds in timing.rows)


def test_explain_keeps_near_misses() -> None:
    explain, near = Explain(), Mismatch("almost", "add")
    PassManager([Says(CAPTURED, 0, near)], [explain]).run(CAPTURED)
    assert explain.mismatches == {"says": (near,)}


def test_dump_writes_a_numbered_file_for_each_change(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "dump"
    PassManager([KEEPS, CHANGES, Says(OTHER, 0)], [Dump(folder)]).run(CAPTURED)
    assert sorted(path.name for path in folder.iterdir()) == ["00_captured.py", "01_says.py"]
    first, second = (folder / name for name in ("00_captured.py", "01_says.py"))
    assert first.read_text().startswith("# as captured, before any pass\n")
    assert second.read_text().startswith("# after says: 3 rewrites, ")
    assert "# graph main\n#   in  x: torch.float32 ['B']\n" in second.read_text()
    assert "torch.ops.aten.mul.Tensor" in second.read_text()
    compile(second.read_text(), "dump", "exec")


def test_dump_removes_only_what_it_wrote_before(tmp_path: Path) -> None:
    PassManager([CHANGES, Says(CAPTURED, 1)], [Dump(tmp_path)]).run(CAPTURED)
    own = ["notes.txt", "1_mine.py", "00_captured.txt", "07_mine.py"]
    for name in own:
        (tmp_path / name).write_text("mine")
    PassManager([KEEPS], [Dump(tmp_path)]).run(CAPTURED)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["00_captured.py", *own])
    assert all((tmp_path / name).read_text() == "mine" for name in own)


def test_one_dump_may_watch_two_runs(tmp_path: Path) -> None:
    dump = Dump(tmp_path)
    for _ in range(2):
        PassManager([CHANGES], [dump]).run(CAPTURED)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["00_captured.py", "01_says.py"]


def test_verify_lets_honest_passes_through() -> None:
    assert PassManager([Says(CAPTURED, 0)], [Verify()]).run(CAPTURED) is CAPTURED
    assert PassManager([CHANGES], [Verify()]).run(CAPTURED) is OTHER


@pytest.mark.parametrize(
    "liar,message",
    [
        (Says(CAPTURED, 2), "pass says reports 2 rewrites but did not change the program"),
        (Says(OTHER, 0), "pass says reports 0 rewrites but changed the program"),
    ],
    ids=["claims too much", "claims too little"],
)
def test_verify_finds_out_a_pass_that_lies(liar: Pass, message: str) -> None:
    with pytest.raises(PassError, match=message):
        PassManager([liar], [Verify()]).run(CAPTURED)


def test_verify_checks_what_goes_in_and_what_comes_out() -> None:
    broken = program_of(lambda t: {"y": t["key_cache.0"] + 1.0}, floats("key_cache.0", "B", 4))
    with pytest.raises(VerifierError, match=r"'every cache is updated'"):
        PassManager([], [Verify()]).run(broken)
    with pytest.raises(VerifierError, match=r"'every cache is updated'"):
        PassManager([Says(broken, 1)], [Verify()]).run(CAPTURED)
