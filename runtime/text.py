"""From token ids to text that may be shown: whole characters, and nothing of a stop string."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]
_REPLACEMENT = "\ufffd"


class OutputText:
    """The text of a growing list of tokens, spelled out when somebody reads it.

    With stop strings it is spelled token by token, to find where one is complete. One thread may
    read it while another goes on.

    Args:
        token_ids: the list that grows.
        stops: non-empty strings, which end the text.
        decode: the tokenizer's own decoding of a list of ids.
    """

    def __init__(self, token_ids: Sequence[int], stops: Sequence[str], decode: Decode) -> None:
        self._token_ids = token_ids
        self._decoder, self._scanner = IncrementalDecoder(decode), StopScanner(stops)
        self._watches = bool(stops)
        self._num_said = 0  # tokens that belong to the text: all but one that ended it
        self._num_spelled = 0
        self._ended = self._flushed = False
        self._pieces: list[str] = []
        self._num_read = 0
        self._lock = threading.Lock()

    def stops_with_last_token(self) -> bool:
        """Take the last token into the text; whether that completes a stop string."""
        self._num_said += 1
        if self._watches:
            with self._lock:
                self._spell()
        return self._scanner.stopped

    def finish(self) -> None:
        """Note that no token will come."""
        self._ended = True

    def so_far(self) -> str:
        """All text that may be shown.

        Raises:
            GenerationError: the tokenizer's decoder fails.
        """
        with self._lock:
            self._spell()
            return "".join(self._pieces)

    def read(self) -> str:
        """The text since the last call; errors as `so_far`."""
        with self._lock:
            self._spell()
            fresh = "".join(self._pieces[self._num_read :])
            self._num_read = len(self._pieces)
            return fresh

    def _spell(self) -> None:
        ended, said = self._ended, self._num_said  # in this order: after the end nothing is said
        if self._flushed:
            return
        while self._num_spelled < said and not self._scanner.stopped:
            self._show(self._decoder.push(self._token_ids[self._num_spelled]))
            self._num_spelled += 1
        if ended and not self._scanner.stopped:
            self._show(self._decoder.finish())
            if rest := self._scanner.finish():
                self._pieces.append(rest)
            self._flushed = True

    def _show(self, text: str) -> None:
        if text and (shown := self._scanner.push(text)):
            self._pieces.append(shown)


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
