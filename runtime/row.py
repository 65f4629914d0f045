"""One row of a generation: where its output ends, what it says, what it counted."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from spec_compile.runtime.stats import GenerationStats, Round
from spec_compile.runtime.text import OutputText
from spec_compile.runtime.tokenizer import BundleTokenizer

RUNNING = "running"
EOS, STOP, LENGTH, CAPACITY, CANCELLED = "eos", "stop", "length", "capacity", "cancelled"
DEADLINE = "deadline"
FINISH_REASONS = (EOS, STOP, LENGTH, CAPACITY, CANCELLED, DEADLINE)


class Row:
    """Takes the blocks that the rounds emit and cuts them where the output ends.

    Args:
        budget: most tokens to keep.
        budget_reason: what it means to reach it, LENGTH or CAPACITY.
        eos_token_ids: any of them is kept and ends the output.
        stops: strings that end the output; need a tokenizer.
        tokenizer: None gives no text.
        num_speculative_tokens: k, or 0 for target-only decoding.

    Attributes:
        token_ids: kept tokens; EOS and the tokens that spelled a stop string included.
        finish_reason: RUNNING until one of FINISH_REASONS.
    """

    def __init__(
        self,
        *,
        budget: int,
        budget_reason: str,
        eos_token_ids: Collection[int],
        stops: Sequence[str],
        tokenizer: BundleTokenizer | None,
        num_speculative_tokens: int,
    ) -> None:
        self.token_ids: list[int] = []
        self.finish_reason = RUNNING
        self._budget, self._budget_reason = budget, budget_reason
        self._eos = frozenset(eos_token_ids)
        special = [tokenizer.special_token_id(stop) if tokenizer else None for stop in stops]
        self._stop_ids = frozenset(token for token in special if token is not None)
        decode = tokenizer.decode if tokenizer else None
        self._text = OutputText(self.token_ids, stops, decode) if decode else None
        self._k = num_speculative_tokens
        self._rounds: list[Round] = []

    @property
    def finished(self) -> bool:
        """Whether the output has ended."""
        return self.finish_reason != RUNNING

    @property
    def text(self) -> str | None:
        """All text so far that may be shown; None without a tokenizer."""
        return self._text.so_far() if self._text is not None else None

    def read_text(self) -> str:
        """The text since the last call."""
        return self._text.read() if self._text is not None else ""

    def accept(
        self, block: Sequence[int], milliseconds: float, num_proposed: int | None = None
    ) -> Sequence[int]:
        """Keep a round's block up to where the output ends, and count it.

        Args:
            block: `num_accepted` draft tokens and the recovered or bonus token.
            milliseconds: what the round took.
            num_proposed: draft tokens that the round proposed for this row; None: k.

        Returns:
            The tokens kept: the whole block, or less when the row is now finished.
        """
        if self.finish_reason != RUNNING:  # another thread closed the stream during the round
            return block[:0]
        kept = 0
        for token in block:
            self.token_ids.append(token)
            kept += 1
            self._end_or_continue(token)
            if self.finished:
                break
        if self.finished and self._text is not None:
            self._text.finish()
        proposed = self._k if num_proposed is None else num_proposed
        self._count(kept, len(block), milliseconds, proposed)
        return block[:kept]

    def cancel(self) -> None:
        """End the output here, unless it has ended."""
        self.end(CANCELLED)

    def end(self, reason: str) -> None:
        """End the output here for `reason`, unless it has ended."""
        if not self.finished:
            self.finish_reason = reason
            if self._text is not None:
                self._text.finish()

    def stats(self) -> GenerationStats:
        """What has been counted so far."""
        wall_ms = sum(one.milliseconds for one in self._rounds)
        return GenerationStats(self._k, tuple(self._rounds), wall_ms)

    def _end_or_continue(self, token: int) -> None:
        if token in self._eos:
            self.finish_reason = EOS
        elif token in self._stop_ids or self._completes_stop():
            self.finish_reason = STOP
        elif len(self.token_ids) >= self._budget:
            self.finish_reason = self._budget_reason

    def _completes_stop(self) -> bool:
        return self._text is not None and self._text.stops_with_last_token()

    def _count(self, kept: int, emitted: int, milliseconds: float, proposed: int) -> None:
        proposed, accepted = (proposed, emitted - 1) if kept == emitted else (kept, kept)
        is_first = not self._rounds
        self._rounds.append(Round(proposed, accepted, kept, milliseconds, is_first))
