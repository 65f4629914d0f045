"""Bundles of every acceptance rule, one draft and several: greedy tokens, law and edges hold."""

from __future__ import annotations

import logging

import pytest

from spec_compile.check import CheckOptions, check_bundle
from spec_compile.config import SpecConfig
from tests.end_to_end.conftest import MAX_LENGTH, Bundles

OPTIONS = CheckOptions(law_samples=1500, max_new_tokens=16, num_threads=1)
QUICK = [("block", "verify", 1), ("match", "step", 1), ("kseq", "verify", 3), ("fanout", "step", 3)]
OTHERS = [
    ("block", "step", 1),
    ("match", "verify", 1),
    ("typical", "verify", 1),
    ("lenient", "step", 1),
    ("specdec", "step", 1),
    ("kseq", "step", 2),
    ("recursive", "verify", 2),
    ("recursive", "step", 3),
    ("recursive_wor", "verify", 3),
    ("fanout", "verify", 2),
    ("topk_plus_one", "step", 3),
]


def check(bundles: Bundles, acceptance: str, fusion: str, num_drafts: int) -> dict[str, str]:
    """The outcome of each check of a bundle."""
    config = SpecConfig(
        num_speculative_tokens=1 if acceptance == "topk_plus_one" else 3,
        acceptance=acceptance,
        fusion=fusion,
        num_drafts=num_drafts,
        max_length=MAX_LENGTH,
        batch_size=4,
    )
    report = check_bundle(bundles("good", config).bundle.folder, OPTIONS)
    return {one.name: one.status for one in report.results}


@pytest.mark.parametrize("acceptance,fusion,num_drafts", QUICK)
def test_bundle(
    bundles: Bundles,
    acceptance: str,
    fusion: str,
    num_drafts: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # A graph that is decomposed, instead of translated as it is, takes twice as long to export.
    with caplog.at_level(logging.INFO, "spec_compile.export"):
        found = check(bundles, acceptance, fusion, num_drafts)
    assert not [line for line in caplog.messages if line.startswith("decomposing")]
    assert found == {"files": "pass", "greedy": "pass", "law": "pass", "edges": "pass"}


@pytest.mark.slow
@pytest.mark.parametrize("acceptance,fusion,num_drafts", OTHERS)
def test_other_bundle(bundles: Bundles, acceptance: str, fusion: str, num_drafts: int) -> None:
    found = check(bundles, acceptance, fusion, num_drafts)
    law = "skip" if acceptance in ("typical", "lenient", "specdec") else "pass"
    greedy = "skip" if acceptance == "specdec" else "pass"
    assert found == {"files": "pass", "greedy": greedy, "law": law, "edges": law}
