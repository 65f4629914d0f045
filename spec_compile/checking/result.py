"""What a check found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

PASSED, FAILED, SKIPPED = "pass", "FAIL", "skip"

Progress = Callable[[str, int, int], None]
"""Told of a stage's name, the steps done and the steps in all."""


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check.

    Args:
        name: `files`, `logits`, `greedy` or `law`.
        status: PASSED, FAILED, or SKIPPED when there was nothing to check.
        detail: one line for people.
        figures: the numbers behind it, ready for JSON.
    """

    name: str
    status: str
    detail: str
    figures: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON."""
        return {**vars(self), "status": self.status.lower(), "figures": dict(self.figures)}


def verdict(passed: bool) -> str:
    """PASSED or FAILED."""
    return PASSED if passed else FAILED


def no_progress(stage: str, done: int, total: int) -> None:
    """A `Progress` that nobody reads."""
