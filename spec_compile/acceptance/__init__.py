"""Acceptance rules: pure tensor functions that decide which draft tokens stay.

`RULES` is the whole list; a new rule is a file beside this one and a line in it
(see docs/writing_a_rule.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from spec_compile.acceptance.base import Accepted, Drafting, Rule, SeveralDraftsRule
from spec_compile.acceptance.block import Block
from spec_compile.acceptance.fanout import Fanout, TopKPlusOne
from spec_compile.acceptance.greedy import Greedy
from spec_compile.acceptance.kseq import KSeq
from spec_compile.acceptance.lenient import Lenient
from spec_compile.acceptance.match import Match
from spec_compile.acceptance.recursive import Recursive, RecursiveWithoutReplacement
from spec_compile.acceptance.rejection import Rejection
from spec_compile.acceptance.specdec import SpecDec
from spec_compile.acceptance.typical import Typical
from spec_compile.config import SpecConfig

_ALL: tuple[Rule, ...] = (
    Greedy(),
    Rejection(),
    Block(),
    Match(),
    Typical(),
    Lenient(),
    SpecDec(),
    KSeq(),
    Recursive(),
    RecursiveWithoutReplacement(),
    Fanout(),
    TopKPlusOne(),
)
RULES: Mapping[str, Rule] = MappingProxyType({rule.name: rule for rule in _ALL})


def rule_for(config: SpecConfig) -> Rule:
    """The rule that a configuration names, with its settings."""
    if config.acceptance == SpecDec.name:
        return SpecDec(*config.specdec_settings)
    return RULES[config.acceptance]


__all__ = ["RULES", "Accepted", "Drafting", "Rule", "SeveralDraftsRule", "rule_for"]
