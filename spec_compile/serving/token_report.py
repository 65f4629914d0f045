"""`return_token_kinds`: what an answer tells, beyond OpenAI's protocol, about its tokens.

Every choice then has a field `spec_compile` that clients of OpenAI's protocol pass over:

    {"tokens": [{"text": "def", "kind": "accepted"}, ...],
     "rounds": [{"num_draft_tokens": 4, "num_accepted_tokens": 3, "num_emitted_tokens": 4,
                 "milliseconds": 2.1}, ...],
     "stats": {...}}

`tokens` holds each token of the output once, in order, EOS included; their texts together are the
text of the choice, in each chunk of a stream too. `rounds` holds each round once: its tokens come
with it or, while their text is held back, later. `stats` is in whole answers and in last chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spec_compile.runtime.api import GenerationResult
from spec_compile.runtime.row import Row
from spec_compile.runtime.stats import Round
from spec_compile.runtime.text import Decode
from spec_compile.runtime.token_kinds import KnownToken, KnownTokens

EXTENSION = "spec_compile"
Report = dict[str, Any]


class TokenReport:
    """Writes what one choice tells about its tokens.

    Args:
        decode: the tokenizer's.
    """

    def __init__(self, decode: Decode) -> None:
        self._tokens = KnownTokens(decode)
        self._num_rounds = 0

    def part(self, piece: str, row: Row) -> tuple[str, Report]:
        """What can be told of a stream when `piece` has come: text, and its tokens."""
        return self._told(piece, row, ended=False)

    def rest(self, row: Row) -> tuple[str, Report]:
        """What is left to tell of a stream that has ended."""
        return self._told("", row, ended=True)

    def summary(self, result: GenerationResult) -> Report:
        """What the last chunk tells."""
        return {"tokens": [], "rounds": [], "stats": result.stats.as_dict()}

    def whole(self, result: GenerationResult) -> Report:
        """All of a choice that is not streamed."""
        rounds = result.stats.rounds
        tokens = self._tokens.read(result.text or "", result.token_ids, rounds, ended=True)
        return {**_report(tokens, rounds), "stats": result.stats.as_dict()}

    def _told(self, piece: str, row: Row, *, ended: bool) -> tuple[str, Report]:
        rounds = row.stats().rounds  # before the tokens, which may only be ahead of them
        tokens = self._tokens.read(piece, row.token_ids, rounds, ended=ended)
        fresh, self._num_rounds = rounds[self._num_rounds :], len(rounds)
        return "".join(token.text for token in tokens), _report(tokens, fresh)


def attach(body: Any, report: Report, choice: int = 0) -> Any:
    """`body`, whose choice at the place `choice` now holds `report`."""
    body["choices"][choice][EXTENSION] = report
    return body


def _report(tokens: Sequence[KnownToken], rounds: Sequence[Round]) -> Report:
    return {
        "tokens": [{"text": token.text, "kind": token.kind.name} for token in tokens],
        "rounds": [
            {
                "num_draft_tokens": one.num_draft_tokens,
                "num_accepted_tokens": one.num_accepted_tokens,
                "num_emitted_tokens": one.num_emitted_tokens,
                "milliseconds": round(one.milliseconds, 3),
            }
            for one in rounds
        ],
    }
