"""Measured laws and measured calls of a pair, and the speed-up that follows from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spec_compile.errors import ConfigError
from spec_compile.planning.costs import (
    Costs,
    RoundTimes,
    Size,
    measure_draft_rows,
    measure_rounds,
    measure_target,
)
from spec_compile.planning.models import APPROXIMATE, WITHOUT_DRAFT_LAW, Choice, serves
from spec_compile.planning.rounds import efficiency
from spec_compile.planning.texts import Options, Text, write_texts
from spec_compile.runtime.api import Decoder
from spec_compile.runtime.requests import Options as GenerationArguments

_MOST_COST_TOKENS = 32
_REPEAT = 15


@dataclass(frozen=True)
class Prediction:
    """What one configuration is expected to do.

    Args:
        choice: rule and number of drafts.
        num_speculative_tokens: k.
        block_efficiency: tokens per target call.
        standard_error: of the block efficiency.
        times: of a round.
        milliseconds: for all texts together.
        speed_up: against target-only decoding.
        tokens_per_second: emitted tokens over that time, prompts included.
    """

    choice: Choice
    num_speculative_tokens: int
    block_efficiency: float
    standard_error: float
    times: RoundTimes
    milliseconds: float
    speed_up: float
    tokens_per_second: float

    def as_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return {
            "rule": self.choice.rule,
            "exact": self.choice.rule not in APPROXIMATE,
            "num_speculative_tokens": self.num_speculative_tokens,
            "num_drafts": self.choice.num_drafts,
            "block_efficiency": self.block_efficiency,
            "standard_error": self.standard_error,
            "speed_up": self.speed_up,
            "tokens_per_second": self.tokens_per_second,
            "cost": self.times.source,
            "draft_ms": self.times.draft,
            "verify_ms": self.times.target,
            "host_ms": self.times.host,
        }


class Measured:
    """A pair under one sampling setting: its texts, and its costs.

    Args:
        texts: by the approximate rule that wrote them; None for those of the target.
        costs: of rounds.
        num_tokens: of each text.
    """

    def __init__(
        self, texts: Mapping[str | None, Sequence[Text]], costs: Costs, num_tokens: int
    ) -> None:
        self._texts, self.costs, self.num_tokens = texts, costs, num_tokens

    @property
    def num_texts(self) -> int:
        """How many there are of each kind."""
        return len(next(iter(self._texts.values())))

    @property
    def plain_milliseconds(self) -> float:
        """Target-only decoding of all texts, one token a round."""
        return self.costs.plain.total(self.num_texts, self.num_texts * self.num_tokens)

    def predict(self, choice: Choice, num_speculative_tokens: int) -> Prediction | None:
        """The configuration's figures; None where its round is larger than any measured."""
        times = self.costs.of(
            num_speculative_tokens, choice.num_drafts, lawless=choice.rule in WITHOUT_DRAFT_LAW
        )
        if times is None:
            return None
        texts = self._texts[choice.rule if choice.rule in APPROXIMATE else None]
        found = efficiency([text.survival(choice, num_speculative_tokens) for text in texts])
        milliseconds = times.total(len(texts), found.num_rounds)
        return Prediction(
            choice,
            num_speculative_tokens,
            found.block_efficiency,
            found.standard_error,
            times,
            milliseconds,
            self.plain_milliseconds / milliseconds,
            1000.0 * len(texts) * self.num_tokens / milliseconds,
        )

    def ceilings(self) -> dict[int, float]:
        """By number of drafts: the most that exact rules accept at one position, on average."""
        texts = self._texts.get(None, ())
        if not texts:
            return {}
        means = np.concatenate([text.ceilings for text in texts]).mean(axis=0)
        return dict(zip(texts[0].counts, means.tolist(), strict=True))


def measure(
    decoders: Sequence[Decoder],
    prompts: Sequence[Sequence[int]],
    options: Options,
    wanted: Sequence[Choice],
    sizes: Sequence[Size],
    num_tokens: int,
    seed: int,
    tick: Callable[[], None] = lambda: None,
) -> Measured:
    """Measure a pair: `num_ticks` calls of `tick`.

    Args:
        decoders: bundles of one pair, fusion `verify`; the smallest whose draft graph gives laws
            is the one that laws come from.
        prompts: token ids.
        options: temperature, top-k, top-p, min-p.
        wanted: rules and numbers of drafts to learn about.
        sizes: rounds whose cost will be asked for.
        num_tokens: of each text.
        seed: of the texts and of estimates that draw.
        tick: told of each step.

    Raises:
        ConfigError: no bundle gives the draft's laws, or one is too small for this.
    """
    source = law_source(decoders)
    served = [choice for choice in wanted if serves(choice, options[0], 1)]
    texts = {
        rule: write_texts(
            source, prompts, options, group, num_tokens, np.random.default_rng(seed), tick
        )
        for rule, group in _groups(served)
    }
    costs = _measure_costs(decoders, prompts, options, sizes, num_tokens, seed, tick)
    return Measured(texts, costs, num_tokens)


def num_ticks(decoders: Sequence[Decoder], num_prompts: int, wanted: Sequence[Choice]) -> int:
    """How often `measure` calls its `tick` at most."""
    return num_prompts * len(list(_groups(wanted))) + len(decoders) * (num_prompts + 1)


def law_source(decoders: Sequence[Decoder]) -> Decoder:
    """The bundle with the cheapest draft graph that gives the draft's laws.

    Raises:
        ConfigError: none does, or a bundle is of another fusion than `verify`.
    """
    able: list[Decoder] = []
    for decoder in decoders:
        config = decoder.manifest.config
        if config.fusion != "verify":
            raise ConfigError(
                f"{decoder.bundle.folder} is of fusion {config.fusion}, which keeps the draft's "
                "laws inside its graph; plan needs bundles exported with --fusion verify"
            )
        if _gives_law(decoder):
            able.append(decoder)
    if not able:
        raise ConfigError(
            "no bundle gives the draft's laws: plan needs one exported with --acceptance "
            "rejection, block or a rule for several drafts"
        )
    return min(able, key=lambda one: _config_size(one)[0] * _config_size(one)[1])


def _gives_law(decoder: Decoder) -> bool:
    draft = decoder.manifest.graphs.get("draft")  # prompt lookup has none
    return draft is not None and draft.output("draft_probs") is not None


def _groups(wanted: Sequence[Choice]) -> Iterator[tuple[str | None, list[Choice]]]:
    """Choices that share a text: all exact ones, and each approximate one."""
    if exact := [choice for choice in wanted if choice.rule not in APPROXIMATE]:
        yield None, exact
    for choice in wanted:
        if choice.rule in APPROXIMATE:
            yield choice.rule, [choice]


def _measure_costs(
    decoders: Sequence[Decoder],
    prompts: Sequence[Sequence[int]],
    options: Options,
    sizes: Sequence[Size],
    num_tokens: int,
    seed: int,
    tick: Callable[[], None],
) -> Costs:
    plain: list[RoundTimes] = []
    rounds: dict[Size, RoundTimes] = {}
    lawless: dict[Size, RoundTimes] = {}
    asked = _generation(options, min(num_tokens, _MOST_COST_TOKENS), seed)
    for decoder in decoders:
        if not decoder.manifest.config.samples and options[0] > 0:
            continue
        times = measure_rounds(decoder, prompts, asked, tick)
        plain.append(times[False])
        kind = rounds if _gives_law(decoder) else lawless
        kind.setdefault(_config_size(decoder), times[True])
    source = law_source(decoders)
    context = max(prompts, key=len)
    context = [context[i % len(context)] for i in range(_context_length(prompts, num_tokens))]
    widths = (
        {k * count + 1 for k, count in (*sizes, *rounds, *lawless)}
        | {k + 1 for k, _ in sizes}
        | {1}
    )
    room = source.manifest.config.max_length - len(context)
    target = measure_target(
        source, sorted(w for w in widths if w <= room), context, options, _REPEAT
    )
    most = source.manifest.config.batch_size
    counts = sorted({1, *(count for _, count in sizes if count <= most)})
    draft_rows = measure_draft_rows(source, counts, context, options, _REPEAT)
    middle = sorted(plain, key=lambda one: one.target)[len(plain) // 2]
    return Costs(middle, rounds, lawless, target, draft_rows)


def _context_length(prompts: Sequence[Sequence[int]], num_tokens: int) -> int:
    """Tokens that a row holds in the middle of its text."""
    return sum(map(len, prompts)) // len(prompts) + num_tokens // 2


def _generation(options: Options, num_tokens: int, seed: int) -> GenerationArguments:
    temperature, top_k, top_p, min_p = options
    return {
        "max_new_tokens": num_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "seed": seed,
        "ignore_eos": True,
    }


def _config_size(decoder: Decoder) -> Size:
    config = decoder.manifest.config
    return config.num_speculative_tokens, config.num_drafts
