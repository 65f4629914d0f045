"""`spec-compile bench`: what it counts, what it prints, what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from spec_compile.bench import BenchOptions, bench_bundles
from spec_compile.benchmarking.machine import describe_machine, versions
from spec_compile.benchmarking.memory import measure_memory
from spec_compile.benchmarking.phases import Phases, acceptance_by_position
from spec_compile.cli import main
from spec_compile.runtime.api import load
from spec_compile.runtime.engines.timed import Call
from spec_compile.runtime.stats import GenerationStats, Round
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
    given["memory"] = False
    return bench_bundles(folders, BenchOptions(**{**given, **options}))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_counts_are_those_of_the_generations(folders: tuple[str, str], temperature: float) -> None:
    report = measure(folders, temperatures=(temperature,), seed=5)
    assert "onnxruntime --device cuda" in report["not_available"]
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
    report = measure(folders[:1], batch_sizes=(3,), repeat=1)
    for one in report["results"]:
        emitted = TOKENS * len(PROMPTS)
        assert one["num_emitted_tokens"] == emitted
        assert one["tokens_per_second"] == pytest.approx(1000 * emitted / one["wall_ms"])


def test_table_on_stdout_and_one_json_object(
    folders: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["bench", *folders, "--max-new-tokens", "5", "--repeat", "1", "--warm-up", "0"]
    arguments.append("--no-memory")
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    lines = captured.out.splitlines()
    rows = [line for line in lines if line.startswith(folders)]
    assert [row.split()[1] for row in rows[:4]] == ["target-only", "speculative"] * 2
    assert [row.split()[5] for row in rows[:4:2]] == ["1.00x", "1.00x"]
    assert sum("20/20 outputs equal" in line for line in lines) == 2
    assert main([*arguments, "--json", "--temperature", "0.5"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["workload"]["temperatures"] == [0.5]
    assert report["versions"] == versions()
    assert report["machine"]["cpu"] == describe_machine(None)["cpu"]
    assert len(report["results"]) == 4


def test_a_prompt_file(
    folders: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("ab\n\nbca\n")
    options = ["--max-new-tokens", "3", "--repeat", "1", "--json", "--no-memory"]
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
        ["--plot", "report.svg"],
        ["--plot", "no/such/folder/report.html"],
        ["--predict", "--max-new-tokens", "48"],
    ],
)
def test_unusable_options_are_one_line_and_code_2(
    arguments: list[str], folders: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", folders[0], *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1


def test_every_setting_is_measured(folders: tuple[str, str]) -> None:
    report = measure(folders, batch_sizes=(1, 3), temperatures=(0.0, 0.8), repeat=1, warm_up=0)
    settings = [(one["batch_size"], one["temperature"]) for one in report["results"][::4]]
    assert settings == [(1, 0.0), (1, 0.8), (3, 0.0), (3, 0.8)]
    for one in report["results"]:
        speculative = one["mode"] == "speculative"
        graphs = ["target"]
        if speculative:
            graphs = ["step"] if one["fusion"] == "step" else ["draft", "verify"]
        phases = one["phases_ms"]
        assert list(phases["calls"]) == graphs and phases["host"] > 0
        for call in phases["calls"].values():
            assert call["prompt"] > 0 and 0 < call["median"] <= call["p90"] <= call["p99"]
        kept = one["acceptance_by_position"]
        assert len(kept) == one["num_speculative_tokens"] == (3 if speculative else 0)
        assert kept == sorted(kept, reverse=True)


def test_shares_by_position_leave_out_what_was_cut() -> None:
    rounds = (
        Round(3, 3, 4, 1.0, is_first=True),
        Round(3, 1, 2, 1.0, is_first=False),
        Round(3, 0, 1, 1.0, is_first=False),
        Round(1, 1, 1, 1.0, is_first=False),  # cut at its first draft token
    )
    shares = acceptance_by_position(GenerationStats(3, rounds, 4.0))
    assert shares == [3 / 4, 1 / 3, 1 / 3]


def test_calls_and_rounds_of_generations() -> None:
    phases = Phases()
    phases.add([Call("draft", 4), Call("verify", 9), Call("draft", 1), Call("verify", 3)], 20, 2)
    phases.add([Call("draft", 6), Call("verify", 11)], 20, 1)
    found = phases.as_dict()
    assert found["host"] == (20 - 17 + 20 - 17) / 3
    assert found["calls"]["verify"] == {"prompt": 10, "median": 3, "p90": 3, "p99": 3}
    assert found["calls"]["draft"]["prompt"] == 5


def test_memory_is_that_of_a_process_of_its_own(folders: tuple[str, str]) -> None:
    report = measure(folders[:1], memory=True, repeat=1, warm_up=0, max_new_tokens=2)
    bundle = report["bundles"][folders[0]]
    assert 0 < bundle["imports_bytes"] <= bundle["peak_memory_bytes"]
    nowhere = measure_memory(folders[0] + "/none", 1)
    assert nowhere == {"peak_memory_bytes": None, "imports_bytes": None}


def test_a_page_with_charts(
    folders: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_toy_bundle(Toy(k=2), tmp_path / "<two>")
    page = tmp_path / "report.html"
    options = ["--max-new-tokens", "5", "--repeat", "1", "--no-memory", "--json"]
    arguments = [*folders, str(other), "--plot", str(page), *options]
    assert main(["bench", *arguments, "--batch-size", "1,2", "--temperature", "0,1"]) == 0
    report = json.loads(capsys.readouterr().out)
    predicted = [one for one in report["results"] if "predicted_speed_up" in one]
    assert len(predicted) == 4  # two bundles of fusion verify, two temperatures, one row
    for one in predicted:
        if one["temperature"] == 0:
            foreseen = one["predicted_block_efficiency"]
            assert foreseen == pytest.approx(one["block_efficiency"])
    text = page.read_text(encoding="utf-8")
    root = ElementTree.fromstring(re.sub("<!doctype html>|<meta[^>]*>", "", text))
    charts = root.findall(".//svg")
    # Four settings of speed, two temperatures of acceptance, and three more.
    assert len(charts) == 9
    assert len(root.findall(".//g[@class='line dashed c0']")) == 1
    assert "http" not in text and "<script" not in text
    assert "&lt;two&gt;" in text


def test_a_picture_with_charts(
    folders: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_toy_bundle(Toy(k=2), tmp_path / "two")
    options = ["--max-new-tokens", "5", "--repeat", "1", "--no-memory", "--json"]
    heights = []
    for bundles in (folders[:1], (*folders[:1], str(other))):
        path = tmp_path / f"{len(bundles)}.png"
        assert main(["bench", *bundles, "--plot", str(path), *options]) == 0
        header = path.read_bytes()[:24]
        assert header.startswith(b"\x89PNG")
        heights.append(int.from_bytes(header[20:24], "big"))
    assert heights[1] > heights[0] + 400  # a chart more: the speed-up over k


def test_one_k_has_no_sweep_and_no_prediction(
    folders: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    options = ["--max-new-tokens", "4", "--repeat", "1", "--no-memory", "--json"]
    assert main(["bench", folders[0], "--plot", str(page), *options]) == 0
    assert "predicted_speed_up" not in capsys.readouterr().out
    assert "Speed-up by number of draft tokens" not in page.read_text(encoding="utf-8")


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
