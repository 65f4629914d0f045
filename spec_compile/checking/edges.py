"""The ends of the interval that uniforms come from, where wrong comparisons show at once.

A uniform of exactly 0 turns up once in 16 million draws, so sampling will not find a rule that
accepts `u * draft <= target` where it must be `<`, nor an inverse that runs off the end at the
largest number below 1. Here every uniform is the one, then the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from spec_compile.checking.contexts import tokens_held
from spec_compile.checking.law import Setting, is_settled, law_of
from spec_compile.checking.result import SKIPPED, CheckResult, Progress, no_progress, verdict
from spec_compile.checking.rounding import logit_rounding
from spec_compile.runtime.api import Decoder
from spec_compile.runtime.batch import Batch
from spec_compile.runtime.decoder import check_emitted, rows_of
from spec_compile.runtime.requests import GenerationOptions
from spec_compile.runtime.rounds import Rounds

_STAGE = "edges"
_EDGES = (0.0, float(np.nextafter(np.float32(1), np.float32(0))))
_MOST_CONTEXTS = 6
_GREEDY = Setting(temperature=0.0)


class _FixedBatch(Batch):
    """One row whose uniforms are all the same."""

    uniform = 0.0

    def draw(self, uniforms: NDArray[np.float32], *, by_position: bool = False) -> None:
        uniforms[:] = self.uniform


def check_edges(
    decoder: Decoder,
    contexts: Sequence[Sequence[int]],
    settings: Sequence[Setting],
    progress: Progress = no_progress,
) -> CheckResult:
    """Pass when no round emits a token that the target forbids, whatever the uniforms.

    Args:
        decoder: of the bundle.
        contexts: prompts; the first few are taken.
        settings: sampling options to try, besides greedy ones.
        progress: told of the rounds run.
    """
    config = decoder.manifest.config
    if not config.samples or not config.exact:
        return CheckResult(_STAGE, SKIPPED, f"rule {config.acceptance} makes no such promise")
    rounds = [
        (index, setting, uniform)
        for index in range(min(len(contexts), _MOST_CONTEXTS))
        for setting in dict.fromkeys((*settings, _GREEDY))
        for uniform in _EDGES
    ]
    forbidden = []
    for done, (index, setting, uniform) in enumerate(rounds):
        token = _forbidden_token(decoder, list(contexts[index]), setting, uniform)
        if token is not None:
            forbidden.append((index, setting, uniform, token))
        progress(_STAGE, done + 1, len(rounds))
    detail = f"{len(rounds)} rounds with all uniforms at 0 or just below 1"
    if forbidden:
        index, setting, uniform, token = forbidden[0]
        detail += (
            f": {len(forbidden)} emit what the target forbids, first token {token} after prompt "
            f"{index} at uniform {uniform:g}, {setting}"
        )
    figures = {"rounds": len(rounds), "forbidden": len(forbidden)}
    return CheckResult(_STAGE, verdict(not forbidden), detail, figures)


def _forbidden_token(
    decoder: Decoder, context: list[int], setting: Setting, uniform: float
) -> int | None:
    """The first token of a round after `context` that has no mass in the target's law."""
    config = decoder.manifest.config
    options = GenerationOptions(**setting._asdict())
    first, sources = rows_of(decoder.manifest, [context])
    batch = _FixedBatch(first, options, [0], config.max_length, sources)
    batch.uniform = uniform
    rounds = Rounds(decoder.engine, decoder.manifest, batch)
    rounds.run()
    emitted = int(rounds.num_emitted[0])
    check_emitted(0, emitted, rounds.output_tokens.shape[1])
    path: list[int] = []
    for token in rounds.output_tokens[0, :emitted].tolist():
        if tokens_held(decoder, context) + len(path) >= config.max_length:
            return None
        logits = decoder.next_logits(context, path)
        if not is_settled(logits, setting, logit_rounding(config)):
            return None
        if law_of(logits, setting)[token] <= 0:
            return int(token)
        path.append(token)
    return None
