"""`spec-compile plan`: rounds it foresees, what it prints, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spec_compile.cli import main
from spec_compile.plan import PlanOptions, plan_bundles
from spec_compile.planning.costs import BETWEEN, ESTIMATED, MEASURED, Costs, RoundTimes
from spec_compile.planning.models import Choice, exact_rules
from spec_compile.planning.predict import law_source, measure
from spec_compile.runtime.api import Decoder, load
from tests.helpers.toy_bundle import Toy, write_toy_bundle

PROMPTS = ["ab", "bca c", "a"]
TOKENS = 14


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Bundles of one toy pair with k = 1 and k = 3; do not change them."""
    root = tmp_path_factory.mktemp("plan")
    one, three = (write_toy_bundle(Toy(k=k), root / f"k{k}") for k in (1, 3))
    return str(one), str(three)


def decoders(folders: tuple[str, ...]) -> list[Decoder]:
    return [load(folder, num_threads=1) for folder in folders]


def plan(folders: tuple[str, ...], **options: Any) -> dict[str, Any]:
    """A short plan."""
    given = {"prompts": PROMPTS, "max_new_tokens": TOKENS, "num_threads": 1}
    return plan_bundles(folders, PlanOptions(**{**given, **options}))


@pytest.mark.parametrize("draft", ["self", "good", "random", "wrong"])
def test_greedy_rounds_are_those_of_the_bundle(draft: str, tmp_path: Path) -> None:
    """At temperature 0 nothing is a matter of chance: every round is foreseen."""
    folder = write_toy_bundle(Toy(k=3, draft=draft), tmp_path / "bundle")
    (decoder,) = decoders((str(folder),))
    assert decoder.tokenizer is not None
    prompts = [decoder.tokenizer.encode(text) for text in PROMPTS]
    greedy = Choice("greedy", 1)
    measured = measure([decoder], prompts, (0.0, 0, 1.0, 0.0), [greedy], [(3, 1)], TOKENS, 0)
    found = measured.predict(greedy, 3)
    results = decoder.generate(prompts, max_new_tokens=TOKENS, ignore_eos=True)
    num_rounds = sum(one.stats.num_rounds for one in results)
    assert found is not None
    assert found.block_efficiency == pytest.approx(TOKENS * len(PROMPTS) / num_rounds)


def test_sampled_efficiency_is_that_of_many_generations(folders: tuple[str, str]) -> None:
    """Within four standard errors of what 300 generations of the bundle's rule give."""
    (decoder,) = decoders(folders[1:])
    prompt, seeds = [1, 2, 3], range(300)
    choice, options = Choice("rejection", 1), (0.8, 0, 1.0, 0.0)
    measured = measure([decoder], [prompt] * 40, options, [choice], [(3, 1)], TOKENS, 7)
    found = measured.predict(choice, 3)
    results = [
        decoder.generate(
            prompt, max_new_tokens=TOKENS, temperature=0.8, seed=seed, ignore_eos=True
        ).stats
        for seed in seeds
    ]
    rounds = sum(stats.num_rounds for stats in results)
    assert found is not None
    exact = TOKENS * len(seeds) / rounds
    assert abs(found.block_efficiency - exact) < 4 * found.standard_error + 0.05


def test_the_report(folders: tuple[str, str]) -> None:
    report = plan(folders, temperatures=(0.0, 0.9), num_drafts=(1, 2))
    assert [one["temperature"] for one in report["settings"]] == [0.0, 0.9]
    assert list(report["bundles"]) == list(folders)
    for setting in report["settings"]:
        for one in setting["grid"]:
            k, count = one["num_speculative_tokens"], one["num_drafts"]
            assert 1 <= one["block_efficiency"] <= k + 1
            assert one["speed_up"] > 0 and one["exact"] and one["standard_error"] >= 0
            source = ESTIMATED if count > 1 else BETWEEN if k == 2 else MEASURED
            assert one["cost"] == source
        ceiling = setting["transport_ceiling"]
        assert 0 < ceiling["1"] <= ceiling["2"] <= 1
    greedy, sampled = ({one["rule"] for one in s["grid"]} for s in report["settings"])
    assert greedy == set(exact_rules())
    assert "greedy" not in sampled and {"block", "rejection", "kseq"} < sampled
    best = max(
        1 / (sum(1 / one["speed_up"] for one in both) / 2)
        for both in zip(*(rows(s, "fanout") for s in report["settings"]), strict=True)
    )
    assert report["pick"]["speed_up"] >= best * (1 - 1e-9)
    assert json.loads(json.dumps(report)) == report


def rows(setting: dict[str, Any], rule: str) -> list[dict[str, Any]]:
    return [one for one in setting["grid"] if one["rule"] == rule]


def test_more_tokens_and_better_rules_never_emit_less(folders: tuple[str, str]) -> None:
    (setting,) = plan(folders, temperatures=(1.0,))["settings"]
    block, rejection = rows(setting, "block"), rows(setting, "rejection")
    for better, worse in zip(block, rejection, strict=True):
        assert better["block_efficiency"] >= worse["block_efficiency"] - 1e-9
    for found in (block, rejection, rows(setting, "match")):
        values = [one["block_efficiency"] for one in found]
        assert values == sorted(values)


def test_costs_follow_the_measured_calls() -> None:
    plain = RoundTimes(0, 10, 1, 0, 30)
    one, three = RoundTimes(2, 12, 1, 8, 31), RoundTimes(6, 18, 1, 12, 37)
    target = {1: 10, 2: 11, 3: 12, 4: 14, 5: 15, 7: 20}
    costs = Costs(plain, {(1, 1): one, (3, 1): three}, {}, target, {1: 6, 2: 9})
    assert costs.of(1, 1) == one and costs.of(4, 1) is None
    # Tails are 1 at k = 1 and 4 at k = 3.
    assert costs.of(2, 1) == RoundTimes(4, 14.5, 1, 10, 33.5, BETWEEN)
    assert costs.of(3, 2) == RoundTimes(9, 28, 1, 15, 47, ESTIMATED)
    assert costs.of(1, 4) is None
    assert plain.total(2, 8) == 2 * 30 + 6 * 10 + 8 * 1


def test_lines_and_one_json_object(
    folders: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["plan", folders[1], "--max-new-tokens", "4", "--temperature", "0.5"]
    arguments += ["--rules", "block,lenient,kseq", "--num-drafts", "1,2", "-k", "2"]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    lines = captured.out.splitlines()
    assert any(line.startswith("lenient (approximate)  1") for line in lines)
    assert "k = 2" in captured.out and "k = 3" not in captured.out
    assert lines[-1].startswith("spec-compile export --target toy --draft toy -k ")
    assert main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["command"].startswith("spec-compile export")
    assert {one["rule"] for one in report["settings"][0]["grid"]} == {"block", "lenient", "kseq"}


def test_rules_that_are_greedy_have_one_row(
    folders: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["plan", folders[0], "--max-new-tokens", "3", "--temperature", "0"]
    assert main(arguments) == 0
    rows = capsys.readouterr().out.splitlines()
    names = {row.split()[0] for row in rows if row.split()[1:2] in (["1"], ["2"], ["4"])}
    assert names == {"greedy", "fanout", "topk_plus_one", "recursive_wor"}
    assert main([*arguments, "--rules", "block"]) == 0
    assert any(row.startswith("block") for row in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize(
    "arguments,said",
    [
        ([], "nothing to plan"),
        (["--target", "llama"], "nothing to plan"),
        (["BUNDLE", "--target", "llama"], "not both"),
        (["BUNDLE", "--quantize", "int8"], "--quantize"),
        (["BUNDLE", "--rules", "best"], "'best'"),
        (["BUNDLE", "--rules", "kseq", "--num-drafts", "1"], "above 1"),
        (["BUNDLE", "--num-drafts", "0"], "num_drafts=0"),
        (["BUNDLE", "-k", "0"], "max_speculative_tokens=0"),
        (["BUNDLE", "--temperature", "-1"], "temperature"),
        (["BUNDLE", "--rules", "greedy", "--temperature", "1", "--max-new-tokens", "4"], "greedy"),
        (["BUNDLE", "--max-new-tokens", "48"], "do not fit"),
    ],
)
def test_unusable_options_are_one_line_and_code_2(
    arguments: list[str], said: str, folders: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *(folders[0] if a == "BUNDLE" else a for a in arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1 and said in captured.err


def test_no_list_of_numbers_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["plan", "bundle", "--temperature", "0;1"])
    assert "no list of numbers" in capsys.readouterr().err


def test_bundles_that_cannot_be_planned_with(
    folders: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = write_toy_bundle(Toy(fusion="step"), tmp_path / "step")
    assert main(["plan", str(step)]) == 2
    assert "--fusion verify" in capsys.readouterr().err
    greedy = write_toy_bundle(Toy(acceptance="greedy"), tmp_path / "greedy")
    assert main(["plan", str(greedy)]) == 2
    assert "no bundle gives the draft's laws" in capsys.readouterr().err
    assert law_source(decoders((str(greedy), folders[1], folders[0]))).manifest.config == (
        load(folders[0]).manifest.config
    )
