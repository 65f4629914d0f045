"""What `run.py` asks of a worker, and the lines that a worker writes. Standard library alone.

A worker reads one JSON object, a `Task`, on its standard input and writes one JSON object a line on
its standard output; the kinds of lines are the functions of `worker.py`. Both sides import this
file, each with its own interpreter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

PLAIN, SPECULATIVE, SELF = "plain", "speculative", "self"
"""The target alone; with the draft model; with the target itself as its draft model."""

MODES = (PLAIN, SPECULATIVE, SELF)
PRECISIONS = ("float32", "int8", "int4")


class ProtocolError(Exception):
    """A task or a line that is not what this file describes."""


@dataclass(frozen=True)
class Task:
    """One worker's work: one peer at one precision.

    Args:
        target: folder of the target's checkpoint.
        draft: folder of the draft's checkpoint, or None.
        precision: of the weights of both models; one of PRECISIONS.
        bundles: mode -> folder of a bundle, for spec-compile alone.
        converted: folder in which converted models are kept from run to run.
        environment: folder of the peer's environment.
        prompts: token ids of each prompt.
        cost_prompts: how many of them, the first ones, also measure the cost of speculating.
        max_new_tokens: tokens for each prompt; EOS does not end an output.
        num_speculative_tokens: k.
        num_threads: threads of every model.
        repeat: measured passes over the prompts.
        warm_up: passes before them that are thrown away.
        temperature: 0 is greedy.
        seed: of the random numbers.
        valid: cache entries in use in a single call.
        call_repeat: single calls of each width.
    """

    target: str
    draft: str | None
    precision: str
    bundles: Mapping[str, str]
    converted: str
    environment: str
    prompts: list[list[int]]
    cost_prompts: int
    max_new_tokens: int
    num_speculative_tokens: int
    num_threads: int
    repeat: int
    warm_up: int
    temperature: float
    seed: int
    valid: int
    call_repeat: int

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        """The task of `to_json`.

        Raises:
            ProtocolError: no JSON object, or not with these fields.
        """
        given = parse_object(text)
        names = {field.name for field in fields(cls)}
        if given.keys() != names:
            wrong = ", ".join(sorted(given.keys() ^ names))
            raise ProtocolError(f"a task has other fields than this one: {wrong}")
        return cls(**given)

    def cost_lengths(self) -> tuple[int, int]:
        """Two output lengths, whole numbers of fully accepted rounds apart.

        What the longer one takes more than the shorter one is rounds alone: the prompt, the first
        round and the cut at the budget are in both.
        """
        block = self.num_speculative_tokens + 1
        return block, block * max(2, self.max_new_tokens // block)


def parse_object(text: str) -> dict[str, Any]:
    """A JSON object.

    Raises:
        ProtocolError: it is none.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ProtocolError(f"no JSON: {text.strip()[:200]!r}") from error
    if not isinstance(value, dict):
        raise ProtocolError(f"no JSON object: {text.strip()[:200]!r}")
    return value
