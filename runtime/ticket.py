"""One request on its way through a scheduler: written by its worker, read by whoever waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from spec_compile.errors import SpecCompileError
from spec_compile.runtime.requests import GenerationOptions
from spec_compile.runtime.row import Row
from spec_compile.runtime.stats import Round

Listener = Callable[[], None]


class SharedRow(Row):
    """A row that one thread fills while others may end it."""

    def __init__(self, **arguments: object) -> None:
        self._lock = threading.Lock()
        self._num_taken = 0
        super().__init__(**arguments)  # type: ignore[arg-type]

    def accept(
        self, block: Sequence[int], milliseconds: float, num_proposed: int | None = None
    ) -> Sequence[int]:
        """See `Row.accept`."""
        with self._lock:
            return super().accept(block, milliseconds, num_proposed)

    def end(self, reason: str) -> None:
        """End the output here for `reason`, unless it has ended."""
        with self._lock:
            super().end(reason)

    def take_round(self) -> Round | None:
        """The latest round, once; None when there is none since the last call."""
        if self._num_taken == len(self._rounds):
            return None
        self._num_taken = len(self._rounds)
        return self._rounds[-1]


class Ticket:
    """A submitted request.

    To cancel it, call `row.cancel()` from any thread: it leaves its slot, or the queue, when the
    engine's present call is over.

    Args:
        row: cuts, counts and decodes what is generated.
        prompt: its token ids.
        options: how to generate.
        seed: of its random numbers.
        deadline: when to end it, in seconds of `time.monotonic`; None never.
        listener: called by the worker after each change; must return at once.

    Attributes:
        error: why it failed; None when it did not.
        submitted: when, in seconds of `time.monotonic`.
    """

    def __init__(
        self,
        row: SharedRow,
        prompt: Sequence[int],
        options: GenerationOptions,
        seed: int,
        *,
        deadline: float | None = None,
        listener: Listener | None = None,
    ) -> None:
        self.row, self.prompt, self.options, self.seed = row, prompt, options, seed
        self.deadline = deadline
        self.error: SpecCompileError | None = None
        self.submitted = self._last_time = time.monotonic()
        self._listener = listener
        self._changed = threading.Condition()
        self._version, self._ended, self._done = 0, False, False

    @property
    def done(self) -> bool:
        """Whether nothing more will come."""
        return self._done

    def settle(self) -> bool:
        """Whether the request has ended since the last call (the worker's side)."""
        before, self._ended = self._ended, self.row.finished
        return self._ended and not before

    def lap(self, now: float) -> float:
        """Milliseconds since the last round ended, or since the submission; waiting included."""
        last, self._last_time = self._last_time, now
        return 1000.0 * (now - last)

    def publish(self) -> None:
        """Tell those who wait what `settle` found (the worker's side)."""
        with self._changed:
            self._version += 1
            self._done = self._ended
            self._changed.notify_all()
        if self._listener is not None:
            self._listener()

    def fail(self, error: SpecCompileError) -> None:
        """End with an error, to be published."""
        self.error = error
        self.row.cancel()

    def follow(self) -> Iterator[None]:
        """Yield after each change until the request is done; leaving early cancels it.

        Raises:
            SpecCompileError: the request failed.
        """
        version = 0
        try:
            while not self._done:
                with self._changed:
                    while self._version == version:
                        self._changed.wait()
                    version = self._version
                self.raise_error()
                yield
            self.raise_error()
        finally:
            self.row.cancel()

    def raise_error(self) -> None:
        """Raise what the request failed with, if it did."""
        if self.error is not None:
            raise self.error
