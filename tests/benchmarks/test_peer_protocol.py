"""Tasks and lines between the comparison and its workers, and every way that a worker can fail."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.peers.catalog import MARK, PEERS, ROOT, missing
from benchmarks.peers.launch import Outcome, read_lines, run_worker
from benchmarks.peers.task import PLAIN, SELF, SPECULATIVE, ProtocolError, Task
from benchmarks.peers.worker import NotAvailable, draft_of
from tests.helpers.peer_task import make_task

FAKE_WORKER = """
import os, sys
from benchmarks.peers.worker import NotAvailable, Output, serve


class Fake:
    def __init__(self, task):
        self.task = task

    def versions(self):
        return {"fake": "2.0"}

    def notes(self):
        return "noisy"

    def open(self, mode):
        if mode == "self":
            raise NotAvailable("no self")

        def generate(prompt, length):
            os.write(1, b"an engine prints on standard output\\n")
            if mode == "speculative" and prompt == [2]:
                raise RuntimeError("it broke")
            return Output([prompt[0]] * length, rounds=2)

        return generate

    def calls(self, num_tokens):
        while True:
            yield float(num_tokens)

    def close(self):
        print("closed", file=sys.stderr)


serve(Fake)
"""


def run_fake(task: Task) -> tuple[Outcome, bool, str]:
    done = subprocess.run(
        [sys.executable, "-c", FAKE_WORKER],
        input=task.to_json(),
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    outcome = Outcome("fake", task.precision)
    return outcome, read_lines(outcome, done.stdout), done.stderr


def test_a_task_survives_its_json() -> None:
    task = make_task(bundles={"self": "b"}, draft=None)
    assert Task.from_json(task.to_json()) == task


@pytest.mark.parametrize("text", ["", "[]", "{", '{"target": "t"}', "3"])
def test_what_is_no_task_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        Task.from_json(text)


def test_cost_lengths_are_whole_rounds_apart() -> None:
    assert make_task(max_new_tokens=128).cost_lengths() == (5, 125)
    assert make_task(max_new_tokens=3).cost_lengths() == (5, 10)


def test_each_mode_has_its_draft() -> None:
    drafts = [draft_of(make_task(), mode) for mode in (PLAIN, SPECULATIVE, SELF)]
    assert drafts == [None, Path("d"), Path("t")]
    with pytest.raises(NotAvailable, match="no draft model"):
        draft_of(make_task(draft=None), SPECULATIVE)


def test_a_worker_measures_every_mode_and_keeps_engines_off_its_lines() -> None:
    outcome, ended, errors = run_fake(make_task(repeat=2, warm_up=1))
    assert ended and outcome.reason is None
    assert outcome.versions == {"fake": "2.0"} and outcome.notes == "noisy"
    assert outcome.skipped == {"self": "no self", "speculative": "RuntimeError: it broke"}
    assert outcome.calls == {1: [1.0] * 3, 5: [5.0] * 3}
    assert "an engine prints" in errors and "closed" in errors
    plain = [one for one in outcome.outputs if one["mode"] == "plain"]
    speed = [(one["pass"], one["prompt"]) for one in plain if one["purpose"] == "speed"]
    assert speed == [(0, 0), (0, 1), (1, 0), (1, 1)]
    cost = [(one["prompt"], one["asked"]) for one in plain if one["purpose"] == "cost"]
    assert cost == [(0, 5), (0, 10)] * 2
    assert all(len(one["tokens"]) == one["asked"] for one in plain)


def test_a_worker_that_gets_no_task_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAKE_WORKER],
        input="nonsense",
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    outcome = Outcome("fake", "int8")
    assert not read_lines(outcome, done.stdout)
    assert outcome.reason is not None and "no JSON" in outcome.reason


def test_an_environment_that_is_not_made_is_a_reason(tmp_path: Path) -> None:
    outcome = run_worker("llama-cpp", "llama.cpp", make_task(), tmp_path)
    assert outcome.reason is not None and outcome.reason.count("\n") == 0
    assert f"setup.py --envs {tmp_path} llama-cpp" in outcome.reason


def test_an_environment_is_there_once_setup_has_marked_it(tmp_path: Path) -> None:
    folder = tmp_path / str(PEERS["ort-genai"].environment)
    folder.mkdir()
    assert missing("ort-genai", tmp_path) is not None  # half made
    (folder / MARK).touch()
    assert missing("ort-genai", tmp_path) is None
    assert missing("transformers", tmp_path) is None  # needs none of its own


@pytest.mark.parametrize(
    "written, errors, expected",
    [
        ("", "Traceback\nImportError: no module x\n", "status 9: ImportError: no module x"),
        ("", "", "status 9: no message"),
        ("hello\n", "", "none of the protocol"),
        ('{"line": "other"}\n', "", "unknown kind 'other'"),
        ('{"line": "call"}\n', "", "without its fields"),
        ('{"line": "output", "tokens": 3, "seconds": 1}\n', "", "without its fields"),
        ('{"line": "failed", "reason": "conversion failed"}\n', "", "conversion failed"),
    ],
)
def test_a_worker_that_fails_leaves_one_line(written: str, errors: str, expected: str) -> None:
    def start(command: list[str], given: str, _: Mapping[str, str]) -> tuple[int, str, str]:
        assert command[1:] == ["-m", PEERS["transformers"].module]
        assert Task.from_json(given) == make_task()
        return 9, written, errors

    outcome = run_worker("transformers", "transformers", make_task(), Path("/nowhere"), start)
    assert outcome.reason is not None and expected in outcome.reason
