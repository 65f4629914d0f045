"""The table of rule models, and what a grid of rules and numbers of drafts asks of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from spec_compile.config import ACCEPTANCE_RULES, RULES_FOR_SEVERAL_DRAFTS
from spec_compile.errors import ConfigError
from spec_compile.planning import several, single
from spec_compile.planning.observation import RuleModel

APPROXIMATE = ("typical", "lenient")
NOT_FORESEEN = ("specdec",)
# Rules that read no law of the draft, whose draft graph therefore computes none and is cheaper.
WITHOUT_DRAFT_LAW = ("greedy", "match", "typical")
_SINGLE: Mapping[str, RuleModel] = MappingProxyType(
    {
        "greedy": single.Chain(single.best_token),
        "block": single.Block(),
        "rejection": single.Chain(single.rejection),
        "match": single.Chain(single.best_token),
        "typical": single.Chain(single.typical),
        "lenient": single.Chain(single.lenient),
    }
)
_SEVERAL: Mapping[str, Callable[[int], RuleModel]] = MappingProxyType(
    {
        "fanout": lambda count: several.FirstThenBlock(count, several.fanout),
        "topk_plus_one": lambda count: several.FirstThenBlock(count, several.fanout),
        "recursive_wor": lambda count: several.FirstThenBlock(count, several.recursive_wor),
        "recursive": lambda count: several.Walk(count, several.recursive),
        "kseq": lambda count: several.Walk(count, several.kseq),
    }
)
# With a law of one token these are the same rule: the first one stands for all.
_SAME_WHEN_GREEDY = ("block", "rejection", "match", "typical", "lenient", "recursive", "kseq")


class Choice(NamedTuple):
    """A rule and the number of drafts that it takes a round."""

    rule: str
    num_drafts: int


def model_of(choice: Choice) -> RuleModel:
    """How many draft tokens `choice` accepts."""
    if choice.rule in _SEVERAL:
        return _SEVERAL[choice.rule](choice.num_drafts)
    return _SINGLE[choice.rule]


def exact_rules() -> tuple[str, ...]:
    """Every rule whose output law is the target's; what a plan looks at by default."""
    return tuple(rule for rule in (*_SINGLE, *_SEVERAL) if rule not in APPROXIMATE)


def choices(rules: Sequence[str], num_drafts: Sequence[int]) -> list[Choice]:
    """Every rule with every number of drafts that it takes.

    Raises:
        ConfigError: a rule that does not exist, or that takes none of these numbers of drafts.
    """
    found: list[Choice] = []
    for rule in rules:
        if rule in NOT_FORESEEN:
            raise ConfigError(
                f"rule {rule!r} cannot be foreseen: it accepts by the target's logits, and a plan "
                "sees laws; export with it, and measure the bundle by bench"
            )
        if rule not in ACCEPTANCE_RULES:
            known = ", ".join(ACCEPTANCE_RULES)
            raise ConfigError(f"rule {rule!r} is not supported; choose of {known}")
        takes_several = rule in RULES_FOR_SEVERAL_DRAFTS
        counts = [count for count in num_drafts if (count > 1) == takes_several]
        found += [Choice(rule, count) for count in counts]
        if not counts and not takes_several:
            found.append(Choice(rule, 1))
    if not found:
        raise ConfigError(
            f"{', '.join(rules)} take several drafts a round: give numbers of them above 1"
        )
    return found


def serves(choice: Choice, temperature: float, num_speculative_tokens: int) -> bool:
    """Whether a bundle of this kind exists and can be asked for this temperature."""
    if choice.rule == "greedy" and temperature > 0:
        return False
    return choice.rule != "topk_plus_one" or num_speculative_tokens == 1


def differs(choice: Choice, temperature: float) -> bool:
    """Whether the choice is worth a row of its own: at temperature 0 most rules are `greedy`."""
    return temperature > 0 or choice.rule not in _SAME_WHEN_GREEDY
