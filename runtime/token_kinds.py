"""How each token of an output came about, what that is called, and in which colour it is shown."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spec_compile.runtime.stats import Round
from spec_compile.runtime.text import Decode, IncrementalDecoder


@dataclass(frozen=True)
class TokenKind:
    """One way to come about. Colours are for terminal and page alike, so they are said here once.

    Args:
        name: for programs.
        label: for people.
        about: one line for people.
        terminal: parameter of the escape sequence that selects its colour.
        light: its colour on white, `#rrggbb`.
        dark: its colour on a dark ground.
        underline: `text-decoration-style` of CSS, or `none`; no two kinds have the same, since not
            everyone can tell the colours apart.
    """

    name: str
    label: str
    about: str
    terminal: int
    light: str
    dark: str
    underline: str


ACCEPTED = TokenKind(
    "accepted",
    "accepted draft",
    "the draft model proposed it and the target accepted it",
    32,
    "#0b6b3a",
    "#56d992",
    "solid",
)
RECOVERED = TokenKind(
    "recovered",
    "recovered",
    "drawn in the place of the first draft token that was rejected",
    33,
    "#8a4b00",
    "#f2b84b",
    "wavy",
)
BONUS = TokenKind(
    "bonus",
    "bonus",
    "drawn on top when every draft token was accepted",
    36,
    "#00639b",
    "#6cc8ff",
    "double",
)
TARGET = TokenKind(
    "target",
    "target alone",
    "drawn by the target in a round without a draft",
    39,
    "#1b1f24",
    "#e8ebf0",
    "none",
)
TOKEN_KINDS = (ACCEPTED, RECOVERED, BONUS, TARGET)


@dataclass(frozen=True)
class KnownToken:
    """A token of an output: the text that it completed, often none, and its kind."""

    text: str
    kind: TokenKind


def kinds_of(rounds: Iterable[Round]) -> list[TokenKind]:
    """The kind of every token that `rounds` emitted, in order."""
    found: list[TokenKind] = []
    for one in rounds:
        found += [ACCEPTED] * one.num_accepted_tokens
        if one.num_emitted_tokens > one.num_accepted_tokens:
            found.append(_last_kind(one))
    return found


class KnownTokens:
    """Splits an output's text into its tokens as it grows.

    A token comes out when all of its text has been shown, or at the end: some text is held back
    because it may become a stop string, and a stop string itself is never shown.

    Args:
        decode: the tokenizer's own decoding of a list of ids.
    """

    def __init__(self, decode: Decode) -> None:
        self._decoder = IncrementalDecoder(decode)
        self._waiting: deque[KnownToken] = deque()
        self._text = ""
        self._num_rounds = self._num_tokens = 0

    def read(
        self, text: str, token_ids: Sequence[int], rounds: Sequence[Round], *, ended: bool = False
    ) -> list[KnownToken]:
        """The tokens whose text is complete and that no earlier call has returned.

        Args:
            text: what has been shown since the last call.
            token_ids: all tokens so far, at least those of `rounds`.
            rounds: all rounds so far.
            ended: return every token that is left; their texts together are all that is left.
        """
        kinds = kinds_of(rounds[self._num_rounds :])
        fresh = token_ids[self._num_tokens : self._num_tokens + len(kinds)]
        self._num_rounds, self._num_tokens = len(rounds), self._num_tokens + len(fresh)
        for token, kind in zip(fresh, kinds, strict=True):
            self._waiting.append(KnownToken(self._decoder.push(token), kind))
        self._text += text
        return self._take_all() if ended else self._take_complete()

    def _take_complete(self) -> list[KnownToken]:
        """Up to the last token that completed text: bytes of a character stay together."""
        count = length = 0
        for place, token in enumerate(self._waiting):
            length += len(token.text)
            if length > len(self._text):
                break
            count = place + 1 if token.text else count
        taken = [self._waiting.popleft() for _ in range(count)]
        self._text = self._text[sum(len(token.text) for token in taken) :]
        return taken

    def _take_all(self) -> list[KnownToken]:
        taken: list[KnownToken] = []
        while self._waiting:
            token = self._waiting.popleft()
            end = len(token.text) if self._waiting else len(self._text)
            taken.append(KnownToken(self._text[:end], token.kind))
            self._text = self._text[end:]
        return taken


def _last_kind(one: Round) -> TokenKind:
    if one.num_draft_tokens == 0:
        return TARGET
    return BONUS if one.num_accepted_tokens == one.num_draft_tokens else RECOVERED
