"""How each token of an output came about, in terminal colours."""

from __future__ import annotations

from spec_compile.runtime.api import GenerationResult
from spec_compile.runtime.stats import GenerationStats
from spec_compile.runtime.text import Decode, IncrementalDecoder

ACCEPTED, RECOVERED, BONUS = "accepted draft", "recovered", "bonus"
_COLOURS = {ACCEPTED: "\x1b[32m", RECOVERED: "\x1b[33m", BONUS: "\x1b[36m"}
_RESET = "\x1b[0m"


def origins(stats: GenerationStats) -> list[str]:
    """What each token was: a draft token that was accepted, or what a round ended with."""
    found: list[str] = []
    for one in stats.rounds:
        found += [ACCEPTED] * one.num_accepted_tokens
        if one.num_emitted_tokens > one.num_accepted_tokens:
            whole = one.num_accepted_tokens == one.num_draft_tokens
            found.append(BONUS if whole else RECOVERED)
    return found


def coloured(result: GenerationResult, decode: Decode | None) -> str:
    """The output's text, each piece in the colour of the token that completed it.

    Args:
        result: of one prompt.
        decode: the tokenizer's; None writes token ids.
    """
    kinds = origins(result.stats)
    if decode is None:
        pairs = zip(result.token_ids, kinds, strict=True)
        return " ".join(_paint(str(token), kind) for token, kind in pairs)
    decoder, left = IncrementalDecoder(decode), result.text or ""
    painted = []
    for token, kind in zip(result.token_ids, kinds, strict=True):
        piece = decoder.push(token)[: len(left)]  # a stop string is not part of the text
        left = left[len(piece) :]
        painted.append(_paint(piece, kind))
    return "".join(painted) + left


def legend() -> str:
    """What the colours mean, in themselves."""
    return ", ".join(_paint(kind, kind) for kind in _COLOURS)


def _paint(text: str, kind: str) -> str:
    return f"{_COLOURS[kind]}{text}{_RESET}" if text else ""
