"""The law of a bundle's tokens against the target's own probabilities.

A real round is run again and again from one context, each time with fresh random numbers. The
first token of what it emits must follow the target's law after the context; the second, of the
rounds whose first was the commonest one, the target's law after that token; and so on down the
block. Where a round ended before a position, the target's own law fills the token in: for an exact
rule the whole sequence then follows the target (Leviathan et al., 2023),
for a wrong one it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spec_compile.checking.chi_square import chi_square
from spec_compile.checking.contexts import tokens_held
from spec_compile.checking.power import smallest_noticed
from spec_compile.checking.result import SKIPPED, CheckResult, Progress, no_progress, verdict
from spec_compile.checking.rounding import logit_rounding
from spec_compile.runtime.api import Decoder
from spec_compile.runtime.batch import Batch
from spec_compile.runtime.decoder import check_emitted, rows_of
from spec_compile.runtime.requests import GenerationOptions
from spec_compile.runtime.rounds import Rounds
from spec_compile.runtime.sampling import Sampling, process_logits

LEVEL = 1e-4
"""Probability that a bundle whose law is right fails, over all tests together (Bonferroni)."""
POWER = 0.9
"""Probability with which a law that is wrong by the `noticed` total variation fails a test."""

_STAGE = "law"
_FEWEST_ROUNDS = 200
_WANTED_ENTROPY = 2.0  # nats: several likely tokens, none of them rare
_PROBES = 4


class Setting(NamedTuple):
    """Sampling options of one test; 0, 1 and 0 switch the last three off."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


SETTINGS = (Setting(), Setting(0.7, top_k=20), Setting(top_p=0.9), Setting(min_p=0.05))


class _RepeatedBatch(Batch):
    """Rows that stand still and yet draw numbers that no round has seen."""

    def draw(self, uniforms: NDArray[np.float32], *, by_position: bool = False) -> None:
        super().draw(uniforms)


@dataclass(frozen=True)
class LawTest:
    """One chi-square test.

    Args:
        context: index of the prompt.
        setting: the sampling options.
        position: index of the token in the block.
        samples: rounds that it is over.
        cells: outcomes after pooling the rare ones.
        statistic: chi-square.
        p_value: of the statistic.
    """

    context: int
    setting: Setting
    position: int
    samples: int
    cells: int
    statistic: float
    p_value: float


def check_law(
    decoder: Decoder,
    contexts: Sequence[Sequence[int]],
    settings: Sequence[Setting],
    num_samples: int,
    seed: int,
    progress: Progress = no_progress,
) -> CheckResult:
    """Pass when no test rejects the target's law at LEVEL over the number of tests.

    Args:
        decoder: of the bundle.
        contexts: prompts to choose from, one for each setting.
        settings: sampling options to test, each in a context of its own where there are enough.
        num_samples: rounds for each setting.
        seed: of the random numbers.
        progress: told of the rounds run.
    """
    config = decoder.manifest.config
    if not config.samples:
        return CheckResult(_STAGE, SKIPPED, f"rule {config.acceptance} draws nothing")
    if not config.exact:
        detail = f"rule {config.acceptance} is approximate: its law is not the target's"
        return CheckResult(_STAGE, SKIPPED, detail)
    tests: list[LawTest] = []
    for done, (context, setting) in enumerate(choose_contexts(decoder, contexts, settings)):
        first = done * num_samples

        def tick(rounds: int, first: int = first) -> None:
            progress(_STAGE, first + rounds, num_samples * len(settings))

        round_seed = seed + done * config.batch_size
        blocks = repeat_round(decoder, contexts[context], setting, num_samples, round_seed, tick)
        tests += law_tests(decoder, (context, contexts[context]), setting, blocks, seed)
    return _conclude(tests, num_samples)


def choose_contexts(
    decoder: Decoder, contexts: Sequence[Sequence[int]], settings: Sequence[Setting]
) -> list[tuple[int, Setting]]:
    """A context for each setting: those with several likely next tokens, and no tie at a cut."""
    logits = [decoder.next_logits(list(context)) for context in contexts]
    rounding = logit_rounding(decoder.manifest.config)
    usable = [i for i, context in enumerate(contexts) if len(context) > 1]
    usable.sort(key=lambda i: abs(_entropy(logits[i]) - _WANTED_ENTROPY))
    chosen: list[tuple[int, Setting]] = []
    for setting in settings:
        taken = {index for index, _ in chosen}
        for index in sorted(usable, key=taken.__contains__):  # those not taken first
            if is_settled(logits[index], setting, rounding):
                chosen.append((index, setting))
                break
    return chosen


def repeat_round(
    decoder: Decoder,
    context: Sequence[int],
    setting: Setting,
    num_samples: int,
    seed: int,
    tick: Callable[[int], None],
) -> NDArray[np.int64]:
    """Blocks [num_samples, k + 1] of the round after `context`, -1 where a block had ended.

    Nothing is committed, so each run of the round starts from the same rolled-back caches.
    """
    config = decoder.manifest.config
    rows = min(config.batch_size, num_samples)
    options = GenerationOptions(**setting._asdict())
    seeds = [seed + row for row in range(rows)]
    first_tokens, sources = rows_of(decoder.manifest, [list(context)] * rows)
    batch = _RepeatedBatch(first_tokens, options, seeds, config.max_length, sources)
    rounds = Rounds(decoder.engine, decoder.manifest, batch)
    blocks = np.full((num_samples, config.num_speculative_tokens + 1), -1, dtype=np.int64)
    for first in range(0, num_samples, rows):
        rounds.run()
        for row, emitted in enumerate(rounds.num_emitted.tolist()):
            check_emitted(row, emitted, rounds.output_tokens.shape[1])
        width = rounds.output_tokens.shape[1]
        used = np.arange(width) < rounds.num_emitted[:, None]
        fresh = np.where(used, rounds.output_tokens, -1)
        blocks[first : first + rows, :width] = fresh[: num_samples - first]
        tick(min(first + rows, num_samples))
    return blocks


def law_tests(
    decoder: Decoder,
    context: tuple[int, Sequence[int]],
    setting: Setting,
    blocks: NDArray[np.int64],
    seed: int,
) -> Iterator[LawTest]:
    """Tests of the positions of `blocks` down the path of commonest tokens, while rounds last."""
    rng = np.random.default_rng(seed)
    path: list[int] = []
    for position in range(blocks.shape[1]):
        held = tokens_held(decoder, context[1]) + len(path)
        if len(blocks) < _FEWEST_ROUNDS or held >= decoder.manifest.config.max_length:
            return
        logits = decoder.next_logits(context[1], path)
        if not is_settled(logits, setting, logit_rounding(decoder.manifest.config)):
            return
        law = law_of(logits, setting)
        drawn = _fill_in(blocks[:, position], law, rng)
        counts = np.bincount(drawn, minlength=len(law))
        found = chi_square(counts, law)
        yield LawTest(context[0], setting, position, len(drawn), found.cells, *found[::2])
        path.append(int(counts.argmax()))
        blocks = blocks[drawn == path[-1]]


def _conclude(tests: Sequence[LawTest], num_samples: int) -> CheckResult:
    if not tests:
        return CheckResult(_STAGE, SKIPPED, "no context whose law rounding leaves alone")
    threshold = LEVEL / len(tests)
    worst = min(tests, key=lambda test: test.p_value)
    noticed = max(_noticed(test, threshold) for test in tests if test.position == 0)
    detail = (
        f"{len(tests)} chi-square tests of {num_samples} rounds or less: smallest p "
        f"{worst.p_value:.2g} (at least {threshold:.1e}); a total variation of {noticed:.2f} after "
        f"the prompt would be noticed with probability {POWER:g}"
    )
    if worst.p_value < threshold:
        detail += f"; prompt {worst.context}, position {worst.position}, {_named(worst.setting)}"
    figures = {
        "level": LEVEL,
        "threshold": threshold,
        "samples": num_samples,
        "power": POWER,
        "tests": [
            {
                **asdict(test),
                "setting": test.setting._asdict(),
                "noticed_total_variation": _noticed(test, threshold),
            }
            for test in tests
        ],
    }
    return CheckResult(_STAGE, verdict(worst.p_value >= threshold), detail, figures)


def _noticed(test: LawTest, threshold: float) -> float:
    if test.cells < 2:
        return 1.0
    return smallest_noticed(test.samples, test.cells, threshold, POWER)


def law_of(logits: NDArray[np.float32], setting: Setting) -> NDArray[np.float32]:
    """The law [V] that `logits` [V] give under the options of `setting`."""
    sampling = Sampling(*(np.array([value]) for value in setting))
    law: NDArray[np.float32] = process_logits(logits[None, None], sampling)[0, 0]
    return law


def is_settled(logits: NDArray[np.float32], setting: Setting, rounding: float) -> bool:
    """Whether rounding of the logits cannot decide which tokens top-k, top-p or min-p keep."""
    if setting == Setting(setting.temperature) and setting.temperature > 0:
        return True
    rng = np.random.default_rng(0)
    kept = law_of(logits, setting) > 0
    for _ in range(_PROBES):
        noise = rng.normal(0, rounding, logits.shape).astype(np.float32)
        if ((law_of(logits + noise, setting) > 0) != kept).any():
            return False
    return True


def _fill_in(
    tokens: NDArray[np.int64], law: NDArray[np.float32], rng: np.random.Generator
) -> NDArray[np.int64]:
    missing = tokens < 0
    if not missing.any():
        return tokens
    exact = law.astype(np.float64)
    filled = tokens.copy()
    filled[missing] = rng.choice(len(law), size=int(missing.sum()), p=exact / exact.sum())
    return filled


def _entropy(logits: NDArray[np.float32]) -> float:
    law = law_of(logits, Setting()).astype(np.float64)
    return float(-(law[law > 0] * np.log(law[law > 0])).sum())


def _named(setting: Setting) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in setting._asdict().items())
