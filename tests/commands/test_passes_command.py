"""`spec-compile passes`: the list, and what one pass did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spec_compile.cli import main
from spec_compile.config import SpecConfig
from spec_compile.export.cpu.pipeline import build_lowerings
from spec_compile.passes.pipeline import build_pipeline
from tests.helpers.tiny_models import save_tiny_model

LOWERINGS = [each.name for each in build_lowerings()]


def names(fusion: str) -> list[str]:
    """The pipeline's own order."""
    passes = build_pipeline(SpecConfig(fusion=fusion), vocab_size=8, max_length=16)
    return [each.name for each in passes]


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Arguments that explain with a tiny pair."""
    folder = save_tiny_model(tmp_path_factory.mktemp("pair") / "model", num_hidden_layers=1)
    return ["--target", str(folder), "--draft", str(folder)]


@pytest.mark.parametrize("fusion", ["verify", "step"])
def test_list_is_the_pipeline_in_order(fusion: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["passes", "--fusion", fusion]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert [line.split()[0] for line in lines] == [*names(fusion), *LOWERINGS]
    assert all(len(line.split(maxsplit=1)[1]) > 10 for line in lines)
    assert captured.err == ""


def test_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["passes", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in listed["passes"]] == names("verify")
    assert [each["name"] for each in listed["lowerings"]] == LOWERINGS
    summaries = [each["summary"] for each in [*listed["passes"], *listed["lowerings"]]]
    assert all(summary.endswith(".") for summary in summaries)


def test_explain_tells_rewrites_and_near_misses(
    explained: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["passes", "--explain", "prune_logits", *explained, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    told = json.loads(captured.out)
    # Draft loop, verify and target gather the rows of one head each.
    assert (told["name"], told["rewrites"]) == ("prune_logits", 3)
    assert told["ms"] > 0
    assert all(miss["node"] and miss["reason"] for miss in told["mismatches"])


@pytest.mark.slow
def test_explain_in_words(explained: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["passes", "--explain", "fuse_acceptance", *explained]) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith("fuse_acceptance: Make the graph `verify`")
    assert second.startswith("2 rewrites in ")
    assert third == "no near misses"


@pytest.mark.slow
def test_explain_takes_the_presets_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["passes", "--explain", "fuse_step", "--fusion", "step"]) == 0
    assert "1 rewrites in " in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (["--explain", "nonsense"], 2, f"choose one of {', '.join(names('verify'))}"),
        (["--explain", "fuse_step"], 2, "pipeline of fusion verify has no pass 'fuse_step'"),
        (["--fusion", "nuclear"], 2, "fusion='nuclear'"),
        (["--target", "llama"], 2, "--target and --draft go with --explain PASS"),
        (["--draft", "small"], 2, "--target and --draft go with --explain PASS"),
        (["--explain", "prune_logits", "--draft", "./nowhere"], 1, "no model './nowhere'"),
    ],
)
def test_bad_request_is_one_line(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["passes", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert message in captured.err


def test_explained_pair_is_left_as_it_was(explained: list[str]) -> None:
    assert {path.name for path in Path(explained[1]).iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
    }
