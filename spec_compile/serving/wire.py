"""JSON in and out, and server-sent events."""

from __future__ import annotations

import json
from typing import Any

DONE = b"data: [DONE]\n\n"


def to_json(value: object) -> bytes:
    """JSON in ASCII: no text that a client sent can fail to be encoded."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def event(value: object) -> bytes:
    """One server-sent event."""
    return b"data: " + to_json(value) + b"\n\n"


def from_json(body: bytes) -> dict[str, Any]:
    """The object in a request's body.

    Raises:
        ValueError: not UTF-8, not JSON, or no object; the message is one line.
    """
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_refuse)
    except UnicodeDecodeError as error:
        raise ValueError("the body is not UTF-8") from error
    except RecursionError as error:
        raise ValueError("the body is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError("the body must be a JSON object")
    return value


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")
