"""Acceptance rules from outside the package: the example, and what `compile` refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import Tensor

from examples import own_rule
from spec_compile.acceptance import RULES, Rule
from spec_compile.acceptance.greedy import Greedy
from spec_compile.acceptance.kseq import KSeq
from spec_compile.acceptance.rejection import Rejection
from spec_compile.config import SpecConfig
from spec_compile.driver import compile as compile_pair
from spec_compile.errors import ConfigError


class Boastful(Rejection):
    """Draws drafts as `rejection` and accepts twice as much."""

    name = "boastful"

    def chance(self, draft_mass: Tensor, uniforms: Tensor) -> Tensor:
        return super().chance(draft_mass, uniforms) / 2


class Several(KSeq):
    name = "several"


class Drawless(Greedy):
    name = "drawless"


@pytest.mark.parametrize("factor", [1.0, 1.5, 4.0])
def test_the_example_is_exact(factor: float) -> None:
    assert own_rule.largest_error(own_rule.Divided(factor)) < 0.02


def test_its_measure_finds_a_wrong_rule() -> None:
    assert own_rule.largest_error(Boastful()) > 0.05


@pytest.mark.slow
def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    own_rule.main()
    printed = capsys.readouterr().out
    assert "law: pass" in printed and "greedy: pass" in printed


@pytest.mark.parametrize(
    "rule, draft, message",
    [
        (RULES["rejection"], "small", "the name of another rule"),
        (Drawless(), "small", "samples=False"),
        (Several(), "small", "takes several drafts a round, not 1"),
        (own_rule.Divided(), "prompt-lookup", "prompt-lookup has none"),
        ("block", "small", "give an instance"),
    ],
)
def test_refused(rule: Rule, draft: str, message: str, tmp_path: Path) -> None:
    config = SpecConfig(acceptance="match") if draft == "prompt-lookup" else SpecConfig()
    with pytest.raises(ConfigError, match=message):
        compile_pair("llama", draft, tmp_path / "bundle", config, rule=rule)
    assert not list(tmp_path.iterdir())
