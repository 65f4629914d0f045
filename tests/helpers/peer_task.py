"""A task of the comparison with peers."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.task import Task


def make_task(**changes: Any) -> Task:
    values: dict[str, Any] = {
        "target": "t",
        "draft": "d",
        "precision": "float32",
        "bundles": {},
        "converted": "c",
        "environment": "e",
        "prompts": [[1], [2]],
        "cost_prompts": 1,
        "max_new_tokens": 12,
        "num_speculative_tokens": 4,
        "num_threads": 2,
        "repeat": 3,
        "warm_up": 1,
        "temperature": 0.0,
        "seed": 0,
        "valid": 128,
        "call_repeat": 3,
    }
    return Task(**(values | changes))
