"""Greedy tokens of a bundle against target-only decoding on the same engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from spec_compile.checking.result import SKIPPED, CheckResult, Progress, no_progress, verdict
from spec_compile.checking.rounding import logit_rounding
from spec_compile.runtime.api import Decoder

_STAGE = "greedy"


@dataclass(frozen=True)
class Difference:
    """The first token of an output that is not the target's.

    Args:
        prompt: index of the prompt.
        rows: rows that were decoded side by side.
        position: index of the token in the output.
        expected: the target's token.
        found: the bundle's.
        margin: the target's best logit less its second best at that position.
        rounding: the margin under which either token is as good as the other.
    """

    prompt: int
    rows: int
    position: int
    expected: int
    found: int | None
    margin: float
    rounding: float

    @property
    def near_tie(self) -> bool:
        """Whether rounding alone may have decided."""
        return self.margin < self.rounding


@dataclass(frozen=True)
class GreedyComparison:
    """What was compared, and every difference; after a near tie the comparison goes on behind it.

    Args:
        prompts: number of prompts.
        tokens: number of tokens compared, over every way of decoding.
        differences: in order of prompts.
    """

    prompts: int
    tokens: int
    differences: tuple[Difference, ...]

    @property
    def near_ties(self) -> tuple[Difference, ...]:
        """Differences that rounding explains."""
        return tuple(one for one in self.differences if one.near_tie)

    @property
    def mismatches(self) -> tuple[Difference, ...]:
        """Differences that are wrong."""
        return tuple(one for one in self.differences if not one.near_tie)


def check_greedy(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    progress: Progress = no_progress,
) -> CheckResult:
    """Pass when every prompt, alone and in a batch, gives the target's own tokens."""
    config = decoder.manifest.config
    if not config.samples and not config.exact:
        detail = f"rule {config.acceptance} is approximate: its tokens are not the target's"
        return CheckResult(_STAGE, SKIPPED, detail)
    found = compare_greedy(decoder, prompts, max_new_tokens, progress)
    detail = (
        f"{found.prompts} prompts x {max_new_tokens} tokens: {len(found.mismatches)} mismatches, "
        f"{len(found.near_ties)} near ties"
    )
    if found.mismatches:
        first = found.mismatches[0]
        detail += (
            f"; prompt {first.prompt}, token {first.position}: the target gives {first.expected}, "
            f"the bundle {first.found} (margin {first.margin:.2g})"
        )
    figures = {
        "prompts": found.prompts,
        "max_new_tokens": max_new_tokens,
        "tokens_compared": found.tokens,
        "mismatches": [asdict(one) for one in found.mismatches],
        "near_ties": [asdict(one) for one in found.near_ties],
    }
    return CheckResult(_STAGE, verdict(not found.mismatches), detail, figures)


def compare_greedy(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    progress: Progress = no_progress,
) -> GreedyComparison:
    """Decode every prompt with the target alone, speculatively alone, and speculatively in groups.

    EOS counts as any other token, so that every comparison has its full length.
    """
    size = min(decoder.manifest.config.batch_size, len(prompts))
    total = 2 * len(prompts) + (len(prompts) if size > 1 else 0)
    differences: list[Difference] = []
    tokens = done = 0
    references: list[list[int]] = []
    for index, prompt in enumerate(prompts):
        references.append(_decode(decoder, [prompt], max_new_tokens, speculative=False)[0])
        found = _decode(decoder, [prompt], max_new_tokens)[0]
        differences += _differences(decoder, prompt, references[-1], found, (index, 1))
        tokens, done = tokens + len(references[-1]), done + 2
        progress(_STAGE, done, total)
    for first in range(0, len(prompts) if size > 1 else 0, size):
        group = prompts[first : first + size]
        outputs = _decode(decoder, group, max_new_tokens)
        for index, found in enumerate(outputs, start=first):
            place = (index, len(group))
            differences += _differences(decoder, prompts[index], references[index], found, place)
            tokens += len(references[index])
        done += len(group)
        progress(_STAGE, done, total)
    return GreedyComparison(len(prompts), tokens, tuple(differences))


def _decode(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    *,
    speculative: bool = True,
) -> list[list[int]]:
    results = decoder.generate(
        [list(prompt) for prompt in prompts],
        max_new_tokens=max_new_tokens,
        speculative=speculative,
        ignore_eos=True,
    )
    return [list(result.token_ids) for result in results]


def _differences(
    decoder: Decoder,
    prompt: Sequence[int],
    expected: list[int],
    found: list[int],
    place: tuple[int, int],
) -> list[Difference]:
    """Differences of one output: near ties, and at most one mismatch, the last."""
    position = _first_difference(expected, found)
    if position is None:
        return []
    token = found[position] if position < len(found) else None
    margin = _margin(decoder, prompt, expected[:position])
    rounding = logit_rounding(decoder.manifest.config)
    here = Difference(place[0], place[1], position, expected[position], token, margin, rounding)
    rest = expected[position + 1 :]
    if not here.near_tie or not rest or decoder.manifest.reads_source:
        return [here]
    # Behind a tie both go their own ways: put the bundle on the target's, and look further.
    kept = [*prompt, *expected[: position + 1]]
    again = _decode(decoder, [kept], len(rest))[0]
    later = _differences(decoder, kept, rest, again, place)
    return [here, *(replace(one, position=one.position + position + 1) for one in later)]


def _first_difference(expected: list[int], found: list[int]) -> int | None:
    for position, token in enumerate(expected):
        if position >= len(found) or found[position] != token:
            return position
    return None


def _margin(decoder: Decoder, prompt: Sequence[int], after: list[int]) -> float:
    second, best = np.partition(decoder.next_logits(prompt, after), -2)[-2:]
    return float(best - second)
