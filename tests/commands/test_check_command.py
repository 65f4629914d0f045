"""`spec-compile check`: passes what is right, and fails every way of being wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from spec_compile.check import CheckOptions, check_bundle
from spec_compile.checking.chi_square import chi_square, survival
from spec_compile.checking.law import Setting
from spec_compile.checking.logits import check_logits
from spec_compile.checking.result import CheckResult
from spec_compile.cli import main
from spec_compile.errors import ConfigError
from spec_compile.manifest import MANIFEST_FILE, Manifest
from spec_compile.prompts import read_prompt_file
from spec_compile.runtime.api import load
from tests.helpers import toy_bundle
from tests.helpers.toy_bundle import Toy, ToyModel, file_spec, write_toy_bundle

# The toy graphs read no top-k, top-p or min-p.
QUICK = CheckOptions(
    max_new_tokens=24, law_samples=1000, settings=(Setting(1.0), Setting(0.6)), num_threads=1
)
QUICK_ARGUMENTS = ["--max-new-tokens", "24", "--law-samples", "800", "--num-threads", "1"]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A toy bundle; do not change it."""
    return str(write_toy_bundle(Toy(), tmp_path_factory.mktemp("check") / "bundle"))


def outcomes(path: Path | str, options: CheckOptions = QUICK) -> dict[str, CheckResult]:
    """The results of a check by name."""
    return {result.name: result for result in check_bundle(path, options).results}


def statuses(path: Path | str, options: CheckOptions = QUICK) -> dict[str, str]:
    """Status of each check."""
    return {name: result.status for name, result in outcomes(path, options).items()}


def replace_target(folder: Path, toy: Toy, table: np.ndarray[Any, Any]) -> None:
    """Give the bundle of `toy` a `target` graph over another table, with a manifest that fits."""
    other = replace(toy)
    object.__setattr__(other, "target", ToyModel(table.astype(np.float32)))
    toy_bundle._plain(other, folder / "target.onnx")
    refresh_hash(folder, "target.onnx")


def refresh_hash(folder: Path, name: str) -> None:
    """Enter the file as it is now into the manifest."""
    path = folder / MANIFEST_FILE
    manifest = Manifest.from_json(path.read_text())
    files = {**manifest.files, name: file_spec(folder / name)}
    path.write_text(replace(manifest, files=files).to_json())


@pytest.mark.parametrize("fusion", ["verify", "step"])
def test_a_right_bundle_passes(fusion: str, tmp_path: Path) -> None:
    folder = write_toy_bundle(Toy(fusion=fusion), tmp_path / "bundle")
    results = outcomes(folder)
    assert {name: one.status for name, one in results.items()} == {
        "files": "pass",
        "greedy": "pass",
        "law": "pass",
        "edges": "pass",
    }
    prompts = results["greedy"].figures["prompts"]
    assert results["greedy"].figures["tokens_compared"] == prompts * 24 * 2  # alone and in a batch
    positions = {test["position"] for test in results["law"].figures["tests"]}
    assert {0, 1} <= positions


def test_a_greedy_bundle_has_no_law_to_check(tmp_path: Path) -> None:
    folder = write_toy_bundle(Toy(acceptance="greedy"), tmp_path / "bundle")
    assert statuses(folder) == {"files": "pass", "greedy": "pass", "law": "skip", "edges": "skip"}


def test_accepting_everything_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    leading = toy_bundle._ToyGraph._leading

    def accept_all(graph: toy_bundle._ToyGraph, rejected: str) -> str:
        return leading(graph, graph.And(rejected, graph.Not(rejected)))

    monkeypatch.setattr(toy_bundle._ToyGraph, "_leading", accept_all)
    folder = write_toy_bundle(Toy(), tmp_path / "bundle")
    assert statuses(folder) == {"files": "pass", "greedy": "FAIL", "law": "FAIL", "edges": "FAIL"}


def test_a_wrong_residual_fails_by_its_law_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Recovered tokens drawn evenly from where the target is above the draft: greedy is right."""

    def flat(graph: toy_bundle._ToyGraph, value: str) -> str:
        return graph.Sign(graph.Max(value, graph.const(0, "float32")))

    monkeypatch.setattr(toy_bundle._ToyGraph, "Relu", flat, raising=False)
    folder = write_toy_bundle(Toy(draft="random"), tmp_path / "bundle")
    assert statuses(folder) == {"files": "pass", "greedy": "pass", "law": "FAIL", "edges": "pass"}


def test_another_target_fails(tmp_path: Path) -> None:
    toy = Toy()
    folder = write_toy_bundle(toy, tmp_path / "bundle")
    replace_target(folder, toy, np.roll(toy.target.table, 1, axis=1))
    results = outcomes(folder)
    assert [one.status for one in results.values()] == ["pass", "FAIL", "FAIL", "FAIL"]
    assert len(results["greedy"].figures["mismatches"]) > 0


def test_near_ties_are_counted_apart_and_looked_behind(tmp_path: Path) -> None:
    toy = Toy()
    table = toy.target.table
    second, best = np.argsort(table, axis=1)[:, -2:].T
    rows = np.arange(len(table)) % 4 == 0
    tied = table.copy()
    tied[rows, second[rows]] = table[rows, best[rows]] - 2e-5
    object.__setattr__(toy, "target", ToyModel(tied))
    folder = write_toy_bundle(toy, tmp_path / "bundle")
    swapped = tied.copy()
    swapped[rows, second[rows]] = table[rows, best[rows]] + 2e-5
    replace_target(folder, toy, swapped)
    result = outcomes(folder)["greedy"]
    assert result.status == "pass"
    assert result.figures["mismatches"] == []
    ties = result.figures["near_ties"]
    assert max(tie["margin"] for tie in ties) < 1e-4
    per_output = [(tie["prompt"], tie["rows"]) for tie in ties]
    assert len(per_output) > len(set(per_output))  # some output has a second one


def test_logits_that_are_not_numbers_fail(tmp_path: Path) -> None:
    folder = write_toy_bundle(Toy(with_nan=True), tmp_path / "bundle")
    result = outcomes(folder, replace(QUICK, prompts=["cc"]))["greedy"]
    assert result.status == "FAIL"
    assert "NaN" in result.detail


def test_a_changed_file_fails_unless_hashes_are_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_toy_bundle(Toy(), tmp_path / "bundle")
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text().swapcase())
    assert main(["check", str(folder), *QUICK_ARGUMENTS]) == 1
    assert "chat_template.jinja: its SHA-256" in capsys.readouterr().out
    arguments = ["--no-verify-hash", "--greedy", *QUICK_ARGUMENTS]
    assert main(["check", str(folder), *arguments]) == 0
    assert "hashes skipped" in capsys.readouterr().out


def test_the_table_and_the_json_object(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["check", good, "--temperature", "0.8", "--seed", "3", *QUICK_ARGUMENTS]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert [line.split()[:2] for line in captured.out.splitlines()[:4]] == [
        ["files", "pass"],
        ["greedy", "pass"],
        ["law", "pass"],
        ["edges", "pass"],
    ]
    assert captured.err == ""
    assert main([*arguments, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == first  # one seed, one verdict
    law = first["checks"][2]["figures"]
    assert first["passed"] is True
    assert {test["setting"]["temperature"] for test in law["tests"]} == {0.8}
    assert len({test["context"] for test in law["tests"]}) > 1


@pytest.mark.parametrize("part, checks", [("greedy", ["greedy"]), ("law", ["law", "edges"])])
def test_one_part_alone(
    part: str, checks: list[str], good: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"--{part}", "--json", "--temperature", "1", *QUICK_ARGUMENTS]
    assert main(["check", good, *arguments]) == 0
    found = json.loads(capsys.readouterr().out)["checks"]
    assert [check["name"] for check in found] == ["files", *checks]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--law-samples", "3"],
        ["--temperature", "-1"],
        ["--max-new-tokens", "0"],
        ["--seed", "-1"],
        ["--num-threads", "0"],
        ["--prompt-file", "empty.txt"],
    ],
)
def test_unusable_options_are_one_line_and_code_2(
    arguments: list[str],
    good: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").write_text("\n \n")
    assert main(["check", good, *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1


@pytest.mark.parametrize(
    "command, arguments",
    [
        ("check", ["--temperature", "1", *QUICK_ARGUMENTS]),
        ("bench", ["--max-new-tokens", "4", "--repeat", "1", "--warm-up", "0"]),
    ],
)
def test_the_compiler_s_packages_are_not_imported(
    command: str, arguments: list[str], good: str
) -> None:
    script = (
        "import sys; from spec_compile.cli import main; code = main(sys.argv[1:]);"
        "heavy = {'torch', 'transformers', 'onnx'} & set(sys.modules);"
        "sys.exit(code or ', '.join(heavy) or 0)"
    )
    command_line = [sys.executable, "-c", script, command, good, *arguments]
    done = subprocess.run(command_line, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_logits_against_the_original_model(demo_verify_bundle: Path) -> None:
    decoder = load(demo_verify_bundle, num_threads=1)
    right, wrong = check_logits(decoder, "llama", 0), check_logits(decoder, "small", 0)
    assert (right.status, wrong.status) == ("pass", "FAIL")
    assert right.figures["lengths"][-1] == decoder.manifest.config.max_length - 1


def test_the_demonstration_pair_passes(
    demo_verify_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.json"
    prompts.write_text(json.dumps(["def fib(n):\n", "import os\n", "The list"]))
    arguments = ["--prompt-file", str(prompts), "--max-new-tokens", "32", "--law-samples", "600"]
    code = main(["check", str(demo_verify_bundle), "--num-threads", "1", *arguments])
    assert code == 0, capsys.readouterr().out


@pytest.mark.parametrize("degrees", [1, 2, 7, 40, 400])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.99, 1.0, 1.3, 2.5])
def test_survival_is_scipy_s(degrees: int, share: float) -> None:
    expected = stats.chi2.sf(degrees * share, degrees)
    assert survival(degrees * share, degrees) == pytest.approx(expected, rel=1e-9, abs=1e-300)


def test_chi_square_is_scipy_s_when_nothing_is_rare() -> None:
    rng = np.random.default_rng(2)
    law = rng.dirichlet(np.full(9, 5.0))
    counts = rng.multinomial(1000, law)
    found = chi_square(counts, law)
    expected = stats.chisquare(counts, law * 1000)
    assert found.cells == 9
    assert found.statistic == pytest.approx(expected.statistic)
    assert found.p_value == pytest.approx(expected.pvalue)


def test_chi_square_pools_rare_outcomes_and_refuses_impossible_ones() -> None:
    law = np.array([0.5, 0.495, 0.004, 0.0005, 0.0005, 0.0])
    found = chi_square(np.array([500, 495, 4, 1, 0, 0]), law)
    assert (found.cells, found.p_value) == (3, 1.0)
    assert chi_square(np.array([500, 495, 4, 0, 0, 1]), law).p_value == 0.0


@pytest.mark.parametrize(
    "name, content",
    [
        ("a.json", "{}"),
        ("a.json", "[1]"),
        ("a.json", "[" * 100_000),
        ("a.txt", b"\xff\xfe"),
        ("a.txt", "\n\n"),
    ],
)
def test_files_that_hold_no_prompts(name: str, content: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=name):
        read_prompt_file(path)


def test_prompt_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\n two\n")
    (tmp_path / "a.json").write_text(json.dumps(["one\ntwo", "three"]))
    assert read_prompt_file(tmp_path / "a.txt") == ["one", " two"]
    assert read_prompt_file(tmp_path / "a.json") == ["one\ntwo", "three"]
