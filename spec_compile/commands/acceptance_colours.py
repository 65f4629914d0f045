"""How each token of an output came about, in terminal colours."""

from __future__ import annotations

from spec_compile.runtime.api import GenerationResult
from spec_compile.runtime.text import Decode
from spec_compile.runtime.token_kinds import TOKEN_KINDS, KnownTokens, TokenKind, kinds_of

_RESET = "\x1b[0m"


def coloured(result: GenerationResult, decode: Decode | None) -> str:
    """The output's text, each piece in the colour of the token that completed it.

    Args:
        result: of one prompt.
        decode: the tokenizer's; None writes token ids.
    """
    rounds = result.stats.rounds
    if decode is None:
        pairs = zip(result.token_ids, kinds_of(rounds), strict=True)
        return " ".join(_paint(str(token), kind) for token, kind in pairs)
    tokens = KnownTokens(decode).read(result.text or "", result.token_ids, rounds, ended=True)
    return "".join(_paint(token.text, token.kind) for token in tokens)


def legend() -> str:
    """What the colours mean, in themselves."""
    return ", ".join(_paint(kind.label, kind) for kind in TOKEN_KINDS)


def _paint(text: str, kind: TokenKind) -> str:
    return f"\x1b[{kind.terminal}m{text}{_RESET}" if text else ""
