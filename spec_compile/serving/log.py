"""Structured logs: one JSON object a line, never with a prompt's or an output's text."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Scope

ACCESS = logging.getLogger("spec_compile.serving.access")
_KEY = "spec_compile.note"


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON; mappings given as `extra={"fields": ...}` are merged in."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def note(request: Request, **fields: Any) -> None:
    """Add fields to the line that the request's end will log."""
    request.scope.setdefault(_KEY, {}).update(fields)


def noted(scope: Scope) -> dict[str, Any]:
    """What `note` added."""
    found: dict[str, Any] = scope.get(_KEY, {})
    return found
