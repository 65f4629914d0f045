"""The pipeline as a whole: order, honesty of every pass, counts, and its documentation."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path

import pytest

from spec_compile.export.cpu.pipeline import build_lowerings
from spec_compile.ops import CACHED_ATTENTION, PROCESS_LOGITS
from spec_compile.passes.instruments import Timing, Verify
from spec_compile.passes.manager import PassManager
from spec_compile.passes.pipeline import build_pipeline
from spec_compile.program import Program
from tests.helpers.hand_made import count
from tests.helpers.tiny_models import VOCAB_SIZE
from tests.passes.conftest import MAX_LENGTH, K, Pair, config_of

ROOT = Path(__file__).resolve().parents[2]
CASES = list(product(("verify", "step"), ("rejection", "greedy")))
GRAPHS = {"verify": ["target", "draft", "verify"], "step": ["target", "step"]}


Compiled = Callable[[str, str], tuple[Program, dict[str, int]]]


@pytest.fixture(scope="module")
def compiled(pair: Pair) -> Compiled:
    """The program of a fusion and a rule, and the rewrites of each pass.

    `Verify` watches: it checks every program and finds out passes that lie about their changes.
    """

    @cache
    def run(fusion: str, acceptance: str) -> tuple[Program, dict[str, int]]:
        timing = Timing()
        passes = build_pipeline(
            config_of(fusion, acceptance), vocab_size=VOCAB_SIZE, max_length=MAX_LENGTH
        )
        program = PassManager(passes, [timing, Verify()]).run(pair.program)
        return program, {name: rewrites for name, rewrites, _ in timing.rows}

    return run


@pytest.mark.parametrize("fusion,acceptance", CASES)
def test_every_pass_is_honest_and_counts_what_it_does(
    compiled: Compiled, fusion: str, acceptance: str
) -> None:
    program, rewrites = compiled(fusion, acceptance)
    assert list(program.graphs) == GRAPHS[fusion]
    assert rewrites["fold_logits_bias"] == 0  # Llama keeps none beside its head
    assert rewrites["pack_projections"] == 4  # queries, keys and values; gate and up; two models
    assert rewrites["trim_draft_vocab"] == 0  # nobody asked for it
    assert rewrites["unroll_draft"] == 1
    assert rewrites["fuse_acceptance"] == 2
    assert rewrites.get("fuse_step", 0) == (1 if fusion == "step" else 0)
    assert rewrites["prune_logits"] == 3  # one head a forward over several tokens
    assert rewrites["remove_no_ops"] > 0 and rewrites["merge_duplicates"] > 0


@pytest.mark.parametrize("fusion,acceptance", CASES)
def test_a_second_run_does_nothing(compiled: Compiled, fusion: str, acceptance: str) -> None:
    program, _ = compiled(fusion, acceptance)
    hash_before = program.structural_hash()
    passes = build_pipeline(
        config_of(fusion, acceptance), vocab_size=VOCAB_SIZE, max_length=MAX_LENGTH
    )
    for each in passes:
        composes = each.name in ("trim_draft_vocab", "unroll_draft", "fuse_acceptance")
        if fusion == "step" and composes:
            continue  # what they make has gone into `step`: they have nothing to run on
        result = each(program)
        assert (each.name, result.rewrites) == (each.name, 0)
        assert result.program.structural_hash() == hash_before


@pytest.mark.parametrize("fusion,acceptance", CASES)
def test_graphs_hold_what_they_should_and_no_more(
    compiled: Compiled, fusion: str, acceptance: str
) -> None:
    program, _ = compiled(fusion, acceptance)
    sampled = acceptance == "rejection"
    attention = {"target": 1, "draft": K, "verify": 1, "step": K + 1}
    laws = {"target": 1, "draft": K, "verify": 1, "step": K + 1}
    for name in program.graphs:
        assert count(program, CACHED_ATTENTION, name) == attention[name]
        assert count(program, PROCESS_LOGITS, name) == (laws[name] if sampled else 0)


def test_the_order_is_declared() -> None:
    """Every pass but the first ones names what it needs before it: a shuffled list is refused."""
    passes = build_pipeline(config_of("step", "rejection"), vocab_size=64, max_length=MAX_LENGTH)
    PassManager(passes)
    free = [each.name for each in passes if not each.after]
    assert free == [
        "fold_logits_bias",
        "pack_projections",
        "trim_draft_vocab",
        "fuse_acceptance",
    ]


def test_the_documentation_has_one_heading_per_step_in_order() -> None:
    text = (ROOT / "docs" / "passes.md").read_text(encoding="utf-8")
    headings = re.findall(r"^### `(\w+)`", text, flags=re.MULTILINE)
    passes = build_pipeline(config_of("step", "rejection"), vocab_size=64, max_length=MAX_LENGTH)
    lowerings = [each.name for each in build_lowerings()]
    assert headings == [*(each.name for each in passes), *lowerings]
