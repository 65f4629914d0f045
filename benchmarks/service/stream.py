"""One streamed completion over HTTP, timed."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class Outcome:
    """What came of a request.

    Attributes:
        text: all pieces together.
        finish_reason: None when the stream was left early, or broke.
        num_tokens: what the server's usage says; 0 without one.
        ttft_ms: from sending to the first piece, waiting included; None without a piece.
        tpot_ms: from the first to the last piece, per token but the first; None for one token.
        left: whether the client left on purpose.
        error: what went wrong; empty when nothing did.
    """

    text: str = ""
    finish_reason: str | None = None
    num_tokens: int = 0
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    left: bool = False
    error: str = ""
    times: list[float] = field(default_factory=list, repr=False)


async def complete(
    client: httpx.AsyncClient, body: dict[str, Any], leave_after: int | None = None
) -> Outcome:
    """Send a request and read its stream.

    Args:
        client: at the server's API.
        body: JSON, with `stream` and the usage.
        leave_after: pieces after which to close the connection; None reads to the end.
    """
    outcome, started = Outcome(), time.monotonic()
    try:
        async with client.stream("POST", "/completions", json=body) as answer:
            if answer.status_code != 200:
                outcome.error = f"{answer.status_code}: {(await answer.aread()).decode()[:300]}"
                return outcome
            if leave_after == 0:
                outcome.left = True
                return outcome
            async for line in answer.aiter_lines():
                if not _take(outcome, line):
                    break
                if leave_after is not None and len(outcome.times) >= leave_after:
                    outcome.left = True
                    break
    except httpx.HTTPError as error:
        outcome.error = f"{type(error).__name__}: {error}"
    _count(outcome, started)
    return outcome


def _take(outcome: Outcome, line: str) -> bool:
    """Add a line of the stream; False when it has ended."""
    data = line.removeprefix("data: ")
    if not line.startswith("data: "):
        return True
    if data == "[DONE]":
        return False
    event = json.loads(data)
    if "error" in event:
        outcome.error = str(event["error"])
        return False
    if event.get("usage"):
        outcome.num_tokens = event["usage"]["completion_tokens"]
    for choice in event["choices"]:
        outcome.text += choice["text"]
        outcome.finish_reason = choice["finish_reason"] or outcome.finish_reason
        if choice["text"]:
            outcome.times.append(time.monotonic())
    return True


def _count(outcome: Outcome, started: float) -> None:
    if outcome.times:
        outcome.ttft_ms = 1000.0 * (outcome.times[0] - started)
        if outcome.num_tokens > 1 and len(outcome.times) > 1:
            took = 1000.0 * (outcome.times[-1] - outcome.times[0])
            outcome.tpot_ms = took / (outcome.num_tokens - 1)
