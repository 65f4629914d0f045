"""Plans of a tiny pair's real bundles: rounds foreseen are rounds run, with several drafts too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spec_compile.cli import main
from spec_compile.config import SpecConfig
from spec_compile.planning.models import Choice
from spec_compile.planning.predict import measure
from tests.end_to_end.conftest import MAX_LENGTH, Bundles, Folders

PROMPTS = [[5, 9, 2], [11], [3, 3, 8, 1, 20, 7]]
TOKENS = 16
GREEDY = (0.0, 0, 1.0, 0.0)


@pytest.mark.parametrize(
    "rule,num_drafts",
    [
        ("rejection", 1),
        ("fanout", 3),
        pytest.param("recursive_wor", 3, marks=pytest.mark.slow),
        pytest.param("kseq", 2, marks=pytest.mark.slow),
    ],
)
def test_greedy_rounds_are_those_of_the_bundle(
    bundles: Bundles, rule: str, num_drafts: int
) -> None:
    config = SpecConfig(
        num_speculative_tokens=3,
        acceptance=rule,
        num_drafts=num_drafts,
        max_length=MAX_LENGTH,
        batch_size=4,
    )
    decoder = bundles("good", config)
    choice, size = Choice(rule, num_drafts), (3, num_drafts)
    measured = measure([decoder], PROMPTS, GREEDY, [choice], [size], TOKENS, 0)
    found = measured.predict(choice, 3)
    assert found is not None
    results = decoder.generate(PROMPTS, max_new_tokens=TOKENS, ignore_eos=True)
    num_rounds = sum(one.stats.num_rounds for one in results)
    assert found.block_efficiency == pytest.approx(TOKENS * len(PROMPTS) / num_rounds)
    # Rounds are right only if the texts are, and the texts only if every cache entry is.
    assert num_rounds < TOKENS * len(PROMPTS)


def test_checkpoints_are_exported_for_the_plan(
    folders: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = ["--target", str(folders("target")), "--draft", str(folders("good"))]
    options = ["-k", "2", "--max-new-tokens", "6", "--rules", "block", "--temperature", "0.8"]
    assert main(["plan", *pair, *options, "--keep", str(tmp_path / "kept"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    kept = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert kept == ["k1", "k2"]
    sizes = [config["num_speculative_tokens"] for config in report["bundles"].values()]
    assert sizes == [1, 2]
    assert [one["cost"] for one in report["settings"][0]["grid"]] == ["measured"] * 2
    assert f"--target {folders('target')}" in report["command"]
