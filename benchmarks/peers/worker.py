"""The loop of every worker: read a task, time the peer, write one JSON object a line.

Standard library alone: this file runs in every peer's own environment.

| line | fields |
|---|---|
| `versions` | `versions`: name -> version; `notes`: what the peer was told |
| `skipped` | `what`: a mode or `calls`; `reason`: one line |
| `output` | `mode`, `purpose` (`speed` or `cost`), `pass`, `prompt`, `seconds`, `tokens`, ... |
| `call` | `num_tokens`: width of a single call; `milliseconds`: of each call |
| `failed` | `reason`: one line; nothing follows |
| `done` | the last line of a worker that did its work |
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TextIO, TypeVar

from benchmarks.peers.task import MODES, PLAIN, SELF, SPECULATIVE, Task

SPEED, COST = "speed", "cost"
_WARM_UP_CALLS = 3
_LONGEST_REASON = 300

Result = TypeVar("Result")

Line = dict[str, Any]
"""One JSON object."""


class NotAvailable(Exception):
    """What a peer cannot do here, in one line for the table."""


@dataclass(frozen=True)
class Output:
    """What a peer generated for one prompt.

    Args:
        tokens: the emitted token ids, the prompt left out.
        rounds: target calls, the prompt's included or not but always the same way; None where the
            peer does not tell.
        seconds: the time that the peer itself reports, where only that is fair; None takes the
            time around the call.
    """

    tokens: Sequence[int]
    rounds: int | None = None
    seconds: float | None = None


Generate = Callable[[Sequence[int], int], Output]
"""Prompt's token ids and number of new tokens -> what was generated."""


class Peer(Protocol):
    """One system at one precision, opened for one task."""

    def versions(self) -> Mapping[str, str]:
        """Packages and their versions."""

    def notes(self) -> str:
        """What the peer was told at this precision, in one line."""

    def open(self, mode: str) -> Generate:
        """Load what a mode needs.

        Raises:
            NotAvailable: the peer cannot do it.
        """

    def calls(self, num_tokens: int) -> Iterator[float]:
        """Milliseconds of single calls of the target with `num_tokens` new tokens, without end.

        Raises:
            NotAvailable: the peer has no such call.
        """

    def close(self) -> None:
        """End what the peer started."""


def serve(make_peer: Callable[[Task], Peer]) -> None:
    """Read the task on standard input, measure, write the lines."""
    lines = _own_standard_output()
    done, reason = attempt(partial(_serve, make_peer, lines))
    if done is None:
        _write(lines, {"line": "failed", "reason": reason})


def _serve(make_peer: Callable[[Task], Peer], lines: TextIO) -> bool:
    task = Task.from_json(sys.stdin.read())
    peer = make_peer(task)
    try:
        for line in measure(task, peer):
            _write(lines, line)
    finally:
        peer.close()
    _write(lines, {"line": "done"})
    return True


def measure(task: Task, peer: Peer) -> Iterator[Line]:
    """Every line of a task but the last: versions, outputs, then single calls."""
    yield {"line": "versions", "versions": dict(peer.versions()), "notes": peer.notes()}
    generators: dict[str, Generate] = {}
    for mode in MODES:
        opened, reason = attempt(partial(peer.open, mode))
        if opened is None:
            yield {"line": "skipped", "what": mode, "reason": reason}
        else:
            generators[mode] = opened
    for number in range(task.warm_up + task.repeat):
        yield from _one_pass(task, generators, number)
    yield from _calls(task, peer)


def _one_pass(task: Task, generators: dict[str, Generate], number: int) -> Iterator[Line]:
    """Every prompt through all modes, another one first each time; a mode that fails is dropped."""
    for index, prompt in enumerate(task.prompts):
        for mode in _rotated(list(generators), number + index):
            for purpose, length in _lengths(task, mode, index):
                found, reason = attempt(partial(_timed, generators[mode], prompt, length))
                about = {"mode": mode, "purpose": purpose, "prompt": index, "asked": length}
                if found is None:
                    del generators[mode]
                    yield {"line": "skipped", "what": mode, "reason": reason}
                    break
                if number >= task.warm_up:
                    yield {"line": "output", "pass": number - task.warm_up, **about, **found}


def _lengths(task: Task, mode: str, index: int) -> Iterator[tuple[str, int]]:
    if mode in (PLAIN, SPECULATIVE):
        yield SPEED, task.max_new_tokens
    if mode in (PLAIN, SELF) and index < task.cost_prompts:
        for length in task.cost_lengths():
            yield COST, length


def _timed(generate: Generate, prompt: Sequence[int], length: int) -> dict[str, Any]:
    started = time.perf_counter()
    output = generate(prompt, length)
    seconds = time.perf_counter() - started
    return {
        "seconds": seconds if output.seconds is None else output.seconds,
        "tokens": [int(token) for token in output.tokens],
        "rounds": output.rounds,
    }


def _calls(task: Task, peer: Peer) -> Iterator[Line]:
    """Single calls of one and of k + 1 tokens, in turn."""
    widths = (1, task.num_speculative_tokens + 1)
    found, reason = attempt(partial(_time_calls, peer, widths, task.call_repeat))
    if found is None:
        yield {"line": "skipped", "what": "calls", "reason": reason}
        return
    for width, times in found.items():
        yield {"line": "call", "num_tokens": width, "milliseconds": times}


def _time_calls(peer: Peer, widths: Sequence[int], repeat: int) -> dict[int, list[float]]:
    timers = {width: peer.calls(width) for width in widths}
    rounds = [
        {width: next(timers[width]) for width in widths} for _ in range(_WARM_UP_CALLS + repeat)
    ]
    return {width: [one[width] for one in rounds[_WARM_UP_CALLS:]] for width in widths}


def attempt(action: Callable[[], Result]) -> tuple[Result | None, str]:
    """What an action returns, or None and the reason: a peer's fault is a line, not an end."""
    try:
        return action(), ""
    except NotAvailable as error:
        return None, _shortened(str(error))
    except Exception as error:  # engines raise what they like; it is told in the table
        logging.getLogger(__name__).debug("a peer failed", exc_info=True)
        return None, _shortened(f"{type(error).__name__}: {error}")


def draft_of(task: Task, mode: str) -> Path | None:
    """The checkpoint that a mode drafts with; None for plain decoding.

    Raises:
        NotAvailable: the mode needs a draft model and the task has none.
    """
    if mode == PLAIN:
        return None
    if mode == SELF:
        return Path(task.target)
    if task.draft is None:
        raise NotAvailable("no draft model given")
    return Path(task.draft)


def _rotated(names: list[str], start: int) -> list[str]:
    return [names[(start + step) % len(names)] for step in range(len(names))] if names else []


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]}..."


def _own_standard_output() -> TextIO:
    """Standard output for the lines alone: what engines print there goes to standard error."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return lines


def _write(lines: TextIO, line: Mapping[str, Any]) -> None:
    lines.write(json.dumps(line) + "\n")
    lines.flush()
