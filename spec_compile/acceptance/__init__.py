"""Acceptance rules: pure tensor functions that decide which draft tokens stay.

`RULES` is the whole list; a new rule is a file beside this one and a line in it
(see docs/writing_a_rule.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from spec_compile.acceptance.base import Rule
from spec_compile.acceptance.greedy import Greedy
from spec_compile.acceptance.rejection import Rejection

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "greedy": Greedy(),
        "rejection": Rejection(),
    }
)

__all__ = ["RULES", "Rule"]
