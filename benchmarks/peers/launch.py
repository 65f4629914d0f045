"""Run one worker to its end and collect what it wrote."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.catalog import PEERS, ROOT, interpreter, missing
from benchmarks.peers.task import ProtocolError, Task, parse_object

Line = Mapping[str, Any]
Start = Callable[[list[str], str, Mapping[str, str]], tuple[int, str, str]]
"""Command, standard input, environment -> exit status, standard output, standard error."""


@dataclass
class Outcome:
    """What one peer gave at one precision.

    Args:
        peer: key of `PEERS`, or a bundle's own name for spec-compile.
        precision: of the weights.
        versions: packages and their versions.
        notes: what the peer was told.
        outputs: the lines of generations.
        calls: number of tokens -> milliseconds of single calls.
        skipped: mode, or `calls` -> why there is none.
        reason: why there is nothing at all; None when there is.
    """

    peer: str
    precision: str
    versions: dict[str, str] = field(default_factory=dict)
    notes: str = ""
    outputs: list[Line] = field(default_factory=list)
    calls: dict[int, list[float]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    reason: str | None = None


def run_worker(
    name: str, title: str, task: Task, environments: Path, start: Start | None = None
) -> Outcome:
    """Start the worker of a peer, wait for it, read its lines; never raises for the peer's faults.

    Args:
        name: key of `PEERS`.
        title: what the tables call it.
        task: what to do.
        environments: folder of the peers' environments.
        start: runs the process; None is the real one.
    """
    absent = missing(name, environments)
    if absent is not None:
        return Outcome(title, task.precision, reason=absent)
    outcome = Outcome(title, task.precision)
    command = [str(interpreter(name, environments)), "-m", PEERS[name].module]
    status, written, errors = (start or start_process)(command, task.to_json(), _environment(task))
    try:
        ended = read_lines(outcome, written)
    except ProtocolError as error:
        outcome.reason = f"its worker wrote a line that is none of the protocol: {error}"
        return outcome
    if outcome.reason is None and not ended:
        last = (errors.strip().splitlines() or ["no message"])[-1].strip()
        outcome.reason = f"its worker ended early with status {status}: {last[:200]}"
    return outcome


def read_lines(outcome: Outcome, written: str) -> bool:
    """Put a worker's lines into `outcome`; True when it wrote that it is done.

    Raises:
        ProtocolError: a line of no known kind.
    """
    ended = False
    for text in written.splitlines():
        line = parse_object(text)
        kind = line.get("line")
        try:
            if kind == "versions":
                outcome.versions, outcome.notes = dict(line["versions"]), str(line["notes"])
            elif kind == "skipped":
                outcome.skipped[line["what"]] = str(line["reason"])
            elif kind == "output":
                outcome.outputs.append(_checked(line))
            elif kind == "call":
                outcome.calls[int(line["num_tokens"])] = [float(ms) for ms in line["milliseconds"]]
            elif kind == "failed":
                outcome.reason = str(line["reason"])
            elif kind == "done":
                ended = True
            else:
                raise ProtocolError(f"unknown kind {kind!r}")
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"a line {kind!r} without its fields ({error})") from error
    return ended


def start_process(
    command: list[str], given: str, environment: Mapping[str, str]
) -> tuple[int, str, str]:
    """Run a worker from the repository's root; what it prints besides its lines is kept."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        done = subprocess.run(
            command,
            input=given,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            check=False,
            cwd=ROOT,
            env=dict(environment),
        )
        errors.seek(0)
        return done.returncode, done.stdout, errors.read()


def _checked(line: Line) -> Line:
    """An output with all its fields, in their types."""
    if not isinstance(line["tokens"], list) or float(line["seconds"]) <= 0:
        raise ValueError("tokens or seconds")
    for name in ("mode", "purpose", "pass", "prompt", "asked", "rounds"):
        line[name]
    return line


def _environment(task: Task) -> dict[str, str]:
    """This process's own, with the same number of threads for every library, and no network."""
    threads = str(task.num_threads)
    fixed = {"OMP_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**kept, **fixed}
