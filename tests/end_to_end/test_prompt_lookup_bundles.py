"""Bundles without a draft model, and rounds of a chosen length, run as a user does."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from spec_compile.check import CheckOptions, check_bundle
from spec_compile.cli import main
from spec_compile.config import SpecConfig, config_for
from spec_compile.driver import compile as compile_pair
from spec_compile.errors import ConfigError
from spec_compile.runtime.api import load
from spec_compile.runtime.shared_decoder import SharedDecoder
from tests.end_to_end.conftest import MAX_LENGTH, Bundles, Folders, greedy
from tests.helpers.workload import alone, mixed_requests

PROMPTS = ([5], [7, 8, 9, 7, 8], list(range(1, 20)))
LOOKUP = SpecConfig(
    3, "match", max_length=MAX_LENGTH, batch_size=4, drafter="prompt-lookup", prompt_lookup_min=1
)


@pytest.fixture(scope="module")
def bundle(folders: Folders, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("lookup") / "bundle"
    return compile_pair(str(folders("target")), "prompt-lookup", output, LOOKUP)


def test_greedy_tokens_are_those_of_transformers(bundle: Path, reference: PreTrainedModel) -> None:
    decoder = load(bundle, num_threads=1)
    assert sorted(decoder.manifest.graphs) == ["target", "verify"]
    assert sorted(decoder.manifest.models) == ["target"]
    for prompt in PROMPTS:
        for adaptive in (False, True):
            result = decoder.generate(prompt, max_new_tokens=99, ignore_eos=True, adaptive=adaptive)
            assert result.token_ids == greedy(reference, prompt, MAX_LENGTH - len(prompt))
            assert result.finish_reason == "capacity"


@pytest.mark.parametrize("draft", ["good", "self"])
def test_adaptive_drafting_keeps_greedy_tokens(
    bundles: Bundles, reference: PreTrainedModel, draft: str
) -> None:
    config = SpecConfig(2, "rejection", max_length=MAX_LENGTH, batch_size=4)
    decoder = bundles(draft, config)
    assert decoder.manifest.graphs["verify"].takes_any_length
    for prompt in PROMPTS:
        expected = greedy(reference, prompt, MAX_LENGTH - len(prompt))
        result = decoder.generate(prompt, max_new_tokens=99, ignore_eos=True, adaptive=True)
        assert result.token_ids == expected


def test_a_batch_with_and_without_proposals(bundle: Path) -> None:
    decoder = load(bundle, num_threads=1)
    prompts = [[5], [7, 8, 7, 8], [3, 3, 3]]
    together = decoder.generate(prompts, max_new_tokens=9, temperature=1.0, seed=4)
    for row, prompt in enumerate(prompts):
        for speculative in (True, False):
            alone = decoder.generate(
                prompt, max_new_tokens=9, temperature=1.0, seed=4 + row, speculative=speculative
            )
            assert together[row].token_ids == alone.token_ids


def test_every_check_passes(bundle: Path) -> None:
    report = check_bundle(bundle, CheckOptions(max_new_tokens=8, law_samples=1500, num_threads=1))
    found = {one.name: one.status for one in report.results}
    assert found == {"files": "pass", "greedy": "pass", "law": "pass", "edges": "pass"}


def test_commands(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = ["bench", str(bundle), "--repeat", "1", "--json", "--max-new-tokens", "4"]
    assert main([*bench, "--adaptive"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert [one["mode"] for one in results] == ["target-only", "speculative", "adaptive"]
    assert all(one["outputs_equal_to_target_only"] == one["prompts"] for one in results)
    assert main(["inspect", str(bundle)]) == 0
    described = capsys.readouterr().out
    assert "prompt-lookup, 1 to 3 last tokens" in described
    assert "weights: target float32\n" in described
    ids = ["generate", str(bundle), "--prompt-ids", "7 8 7 8", "--json", "--max-new-tokens", "3"]
    assert main([*ids, "--prompt-lookup-min", "2", "--prompt-lookup-max", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["stats"]["num_emitted_tokens"] == 3
    assert main([*ids, "--prompt-lookup-min", "4"]) == 2
    assert "prompt_lookup_min=4 must be at most" in capsys.readouterr().err


def test_sizes_belong_to_prompt_lookup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export = ["export", "--target", "llama", "--draft", "small", "-o", str(tmp_path / "out")]
    assert main([*export, "--prompt-lookup-max", "2"]) == 2
    error = capsys.readouterr().err
    assert "--prompt-lookup-max belongs to --draft prompt-lookup; leave it out" in error


@pytest.mark.parametrize(
    "make,message",
    [
        (lambda: config_for("prompt-lookup", SpecConfig()), "needs the law of a draft model"),
        (lambda: config_for("small", LOOKUP), "takes no draft model"),
        (lambda: SpecConfig(3, "match", "step", drafter="prompt-lookup"), "fusion='step' holds"),
        (
            lambda: SpecConfig(3, "match", backend="tensorrt-rtx", drafter="prompt-lookup"),
            "backend='tensorrt-rtx' verifies the same number",
        ),
        (
            lambda: SpecConfig(3, "match", drafter="prompt-lookup", quantize_draft="int8"),
            "quantize_draft is of a draft model",
        ),
        (
            lambda: SpecConfig(3, "match", drafter="prompt-lookup", prompt_lookup_max=1),
            "prompt_lookup_max=1 must be a whole number of at least 2",
        ),
        (
            lambda: SpecConfig(3, "match", drafter="prompt-lookup", prompt_lookup_max=99),
            "prompt_lookup_max=99 must be at most 32",
        ),
    ],
)
def test_what_prompt_lookup_cannot_be_is_refused(
    make: Callable[[], SpecConfig], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_defaults_follow_the_draft() -> None:
    assert config_for("prompt-lookup").acceptance == "match"
    assert config_for("small") == SpecConfig()


def test_requests_side_by_side_as_if_alone(bundle: Path) -> None:
    plain = load(bundle, num_threads=1)
    requests = mixed_requests(24, vocab_size=6, longest=MAX_LENGTH - 1, seed=5)
    expected = alone(plain, requests)
    for number, (_, options) in enumerate(requests):
        options["adaptive"] = number % 3 == 0
    with (
        SharedDecoder.load(bundle, num_slots=4, prefill_chunk=6, num_threads=1) as shared,
        ThreadPoolExecutor(len(requests)) as pool,
    ):
        results = pool.map(lambda one: shared.generate(one[0], **one[1]), requests)
        assert [(one.token_ids, one.finish_reason) for one in results] == expected
