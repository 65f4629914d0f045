"""`spec-compile bench`: what it counts, what it prints, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spec_compile.bench import BenchOptions, bench_bundles
from spec_compile.benchmarking.machine import describe_machine, versions
from spec_compile.cli import main
from spec_compile.runtime.api import load
from tests.helpers.toy_bundle import Toy, write_toy_bundle

PROMPTS = ["ab", "bca c", "a"]
TOKENS, REPEAT = 12, 2


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Toy bundles in both fusions; do not change them."""
    root = tmp_path_factory.mktemp("bench")
    verify, step = (write_toy_bundle(Toy(fusion=f), root / f) for f in ("verify", "step"))
    return str(verify), str(step)


def measure(folders: tuple[str, ...], **options: Any) -> dict[str, Any]:
    """A short measurement."""
    given = {"prompts": PROMPTS, "max_new_tokens": TOKENS, "repeat": REPEAT, "num_threads": 1}
    return bench_bundles(folders, BenchOptions(**{**given, **options}))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_counts_are_those_of_the_generations(folders: tuple[str, str], temperature: float) -> None:
    report = measure(folders, temperature=temperature, seed=5)
    modes = [(one["bundle"], one["mode"]) for one in report["results"]]
    assert modes == [(f, mode) for f in folders for mode in ("target-only", "speculative")]
    decoder = load(folders[0], num_threads=1)
    for one in report["results"]:
        speculative = one["mode"] == "speculative"
        expected = [
            decoder.generate(
                prompt,
                max_new_tokens=TOKENS,
                temperature=temperature,
                seed=5,
                ignore_eos=True,
                speculative=speculative,
            ).stats
            for prompt in PROMPTS
        ]
        assert one["num_emitted_tokens"] == REPEAT * TOKENS * len(PROMPTS)
        assert one["num_rounds"] == REPEAT * sum(stats.num_rounds for stats in expected)
        accepted = sum(stats.num_accepted_tokens for stats in expected)
        assert one["num_accepted_tokens"] == REPEAT * accepted
        assert sum(one["acceptance_histogram"]) == one["num_rounds"]
        assert len(one["acceptance_histogram"]) == (4 if speculative else 1)


def test_rates_follow_from_the_passes(folders: tuple[str, str]) -> None:
    report = measure(folders, repeat=3)
    for baseline, speculative in zip(report["results"][::2], report["results"][1::2], strict=True):
        for one in (baseline, speculative):
            passes = one["tokens_per_second_of_passes"]
            assert len(passes) == 3
            assert one["tokens_per_second"] == sorted(passes)[1]
            ratio = one["tokens_per_second"] / baseline["tokens_per_second"]
            assert one["speed_up"] == pytest.approx(ratio)
            assert one["outputs_equal_to_target_only"] == len(PROMPTS)
            tpot = one["tpot_ms"]
            assert 0 < tpot["median"] <= tpot["p90"] <= tpot["p99"]


def test_the_rate_of_prompts_side_by_side_is_of_all_their_tokens(folders: tuple[str, str]) -> None:
    report = measure(folders[:1], batch_size=3, repeat=1)
    for one in report["results"]:
        emitted = TOKENS * len(PROMPTS)
        assert one["num_emitted_tokens"] == emitted
        assert one["tokens_per_second"] == pytest.approx(1000 * emitted / one["wall_ms"])


def test_table_on_stdout_and_one_json_object(
    folders: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["bench", *folders, "--max-new-tokens", "5", "--repeat", "1", "--warm-up", "0"]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    lines = captured.out.splitlines()
    rows = [line for line in lines if line.startswith(folders)]
    assert [row.split()[1] for row in rows[:4]] == ["target-only", "speculative"] * 2
    assert [row.split()[3] for row in rows[:4:2]] == ["1.00x", "1.00x"]
    assert sum("20/20 outputs equal" in line for line in lines) == 2
    assert main([*arguments, "--json", "--temperature", "0.5"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["workload"]["temperature"] == 0.5
    assert report["versions"] == versions()
    assert report["machine"]["cpu"] == describe_machine(None)["cpu"]
    assert len(report["results"]) == 4


def test_a_prompt_file(
    folders: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("ab\n\nbca\n")
    options = ["--max-new-tokens", "3", "--repeat", "1", "--json"]
    assert main(["bench", folders[0], "--prompt-file", str(prompts), *options]) == 0
    assert json.loads(capsys.readouterr().out)["workload"]["prompt_tokens"] == [2, 3]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--repeat", "0"],
        ["--warm-up", "-1"],
        ["--batch-size", "5"],
        ["--batch-size", "0"],
        ["--max-new-tokens", "0"],
        ["--top-p", "0"],
        ["--num-threads", "0"],
    ],
)
def test_unusable_options_are_one_line_and_code_2(
    arguments: list[str], folders: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", folders[0], *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1


def test_bundles_with_other_tokens_are_not_compared(
    folders: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_toy_bundle(Toy(with_tokenizer=False), tmp_path / "other")
    assert main(["bench", folders[0], str(other)]) == 2
    assert "different tokens" in capsys.readouterr().err


def test_sampling_is_refused_where_the_rule_is_greedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_toy_bundle(Toy(acceptance="greedy"), tmp_path / "greedy")
    assert main(["bench", str(folder), "--temperature", "1"]) == 2
    assert "greedy" in capsys.readouterr().err
