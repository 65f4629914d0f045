"""From token ids to text that may be shown: whole characters, and nothing of a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]
_REPLACEMENT = "\ufffd"


class IncrementalDecoder:
    """Decodes token by token; a character whose bytes are not all there yet is held back.

    Only the ids since the last whole character but one are decoded again, so a token costs the same
    at the end of a long text as at its start.

    Args:
        decode: the tokenizer's own decoding of a list of ids.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._shown = 0  # ids of the window whose text has been returned
        self._shown_text = ""

    def push(self, token: int) -> str:
        """Add a token and return the text that it completes, often none or several characters."""
        self._ids.append(token)
        text = self._decode(self._ids)
        if text.endswith(_REPLACEMENT) or len(text) <= len(self._shown_text):
            return ""
        piece = text[len(self._shown_text) :]
        self._ids = self._ids[self._shown :]
        self._shown, self._shown_text = len(self._ids), self._decode(self._ids)
        return piece

    def finish(self) -> str:
        """The text of bytes that never became a whole character."""
        return self._decode(self._ids)[len(self._shown_text) :]


class StopScanner:
    """Finds stop strings in text that arrives in pieces; how it is cut into pieces does not matter.

    The stop string that is complete first ends the text; of several that end at the same character,
    the longest. What may still become a stop string is held back.

    Args:
        stops: non-empty strings.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, piece: str) -> str:
        """Add text and return what can no longer be part of a stop string."""
        text = self._held + piece
        found = [(start + len(s), start) for s in self._stops if (start := text.find(s)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)[1]]
        keep = self._prefix_at_end(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """The text held back, when no more will come."""
        held, self._held = self._held, ""
        return held

    def _prefix_at_end(self, text: str) -> int:
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
