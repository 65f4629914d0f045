"""Bundles of the rule `specdec`: settings from the command to the manifest, tokens by its rule."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import numpy as np
import pytest
from transformers import PreTrainedModel

from spec_compile.check import CheckOptions, check_bundle
from spec_compile.cli import main
from spec_compile.config import SpecConfig
from spec_compile.errors import ArtifactError, ConfigError
from spec_compile.manifest import MANIFEST_FILE, Manifest
from tests.end_to_end.conftest import MAX_LENGTH, Bundles, Folders, V
from tests.helpers.captured import eager_logits

PROMPTS = [[5, 6, 7], [9, 3], [11, 12, 13, 4], [2]]
NEW_TOKENS = 12


def config_of(fusion: str, beta: int | None = None, tau: float | None = None) -> SpecConfig:
    return SpecConfig(
        num_speculative_tokens=3,
        acceptance="specdec",
        fusion=fusion,
        max_length=MAX_LENGTH,
        batch_size=4,
        specdec_beta=beta,
        specdec_tau=tau,
    )


def outcomes(bundles: Bundles, config: SpecConfig) -> dict[str, str]:
    folder = bundles("good", config).bundle.folder
    report = check_bundle(folder, CheckOptions(max_new_tokens=16, num_threads=1))
    return {one.name: one.status for one in report.results}


@pytest.mark.parametrize("fusion", ["verify", "step"])
def test_beta_of_one_gives_the_target_s_greedy_tokens(bundles: Bundles, fusion: str) -> None:
    config = config_of(fusion, beta=1)
    assert outcomes(bundles, config) == {
        "files": "pass",
        "greedy": "pass",
        "law": "skip",
        "edges": "skip",
    }
    assert bundles("good", config).manifest.config.exact


def is_near(logits: Sequence[float], token: int, beta: int, tau: float) -> bool:
    ordered = np.sort(logits)[::-1]
    return bool(logits[token] >= ordered[beta - 1] and ordered[0] - logits[token] <= tau + 1e-4)


@pytest.mark.parametrize("beta, tau", [(None, None), (2, 0.4)])
def test_every_token_is_near_the_target_s_best(
    bundles: Bundles, reference: PreTrainedModel, beta: int | None, tau: float | None
) -> None:
    """The draft is a noisy copy of the target; the text shows what was let pass."""
    decoder = bundles("good", config_of("verify", beta, tau))
    results = decoder.generate(
        PROMPTS, max_new_tokens=NEW_TOKENS, temperature=0, ignore_eos=True, adaptive=False
    )
    others = 0
    for prompt, result in zip(PROMPTS, results, strict=True):
        tokens = list(result.token_ids)
        # The ids that the tokenizer does not know are no tokens.
        rows = eager_logits(reference, [*prompt, *tokens])[:, :V]
        for place, token in enumerate(tokens, start=len(prompt) - 1):
            logits = [float(logit) for logit in rows[place]]
            assert is_near(logits, token, beta or 5, 3.0 if tau is None else tau)
            others += token != int(np.argmax(logits))
    assert others > 0


def test_check_calls_it_approximate(bundles: Bundles) -> None:
    found = outcomes(bundles, config_of("verify"))
    assert found == {"files": "pass", "greedy": "skip", "law": "skip", "edges": "skip"}


def test_sampling_is_refused_by_name(bundles: Bundles) -> None:
    with pytest.raises(ConfigError, match="exported with --acceptance specdec"):
        bundles("good", config_of("verify")).generate([5], temperature=0.5)


def test_command_manifest_and_inspect_name_the_settings(
    folders: Folders, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path_factory.mktemp("command") / "bundle"
    pair = ["--target", str(folders("target")), "--draft", str(folders("good"))]
    rule = ["--acceptance", "specdec", "--beta", "3", "--tau", "1.5", "-k", "2"]
    assert main(["export", *pair, *rule, "--max-length", "24", "-o", str(folder), "-q"]) == 0
    manifest = Manifest.from_json((folder / MANIFEST_FILE).read_text())
    found = manifest.config
    assert (found.acceptance, found.specdec_beta, found.specdec_tau) == ("specdec", 3, 1.5)
    assert not found.exact
    capsys.readouterr()
    assert main(["inspect", str(folder)]) == 0
    wanted = "acceptance   specdec, beta 3, tau 1.5 (approximate: NOT the target's law)"
    assert wanted in capsys.readouterr().out
    raw = json.loads(manifest.to_json())
    for changes, message in (
        ({"specdec_beta": 0}, "a beta of at least 1"),
        ({"specdec_tau": None}, "a beta of at least 1"),
        ({"specdec_tau": float("nan")}, "specdec_tau must be finite"),
        ({"specdec_tau": True}, "specdec_tau must be a number"),
        ({"specdec_beta": 1}, "does not fit specdec_beta=1"),
        ({"acceptance": "greedy"}, "do not belong to 'greedy'"),
    ):
        text = json.dumps({**raw, "config": {**raw["config"], **changes}})
        with pytest.raises(ArtifactError, match=message):
            Manifest.from_json(text)
    assert dataclasses.replace(manifest) == manifest


@pytest.mark.parametrize(
    "options, message",
    [
        (["--beta", "2"], "--beta belongs to --acceptance specdec, not block"),
        (["--acceptance", "greedy", "--tau", "1"], "--tau belongs to --acceptance specdec"),
        (["--acceptance", "specdec", "--beta", "0"], "specdec_beta=0 must be"),
        (["--acceptance", "specdec", "--tau", "-1"], "specdec_tau=-1.0 must be"),
        (["--acceptance", "specdec", "--tau", "nan"], "specdec_tau=nan must be"),
        (["--acceptance", "specdec", "--num-drafts", "2"], "takes one draft a round, not 2"),
    ],
)
def test_what_does_not_fit_is_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "--target", "a", "--draft", "b", "-o", "c", *options]) == 2
    assert message in capsys.readouterr().err


def test_settings_of_another_rule_are_refused_in_python() -> None:
    with pytest.raises(ConfigError, match="specdec_tau is a setting of acceptance='specdec' alone"):
        SpecConfig(acceptance="greedy", specdec_tau=1.0)


def test_plan_says_that_it_cannot_foresee_it(capsys: pytest.CaptureFixture[str]) -> None:
    pair = ["--target", "llama", "--draft", "small"]
    assert main(["plan", *pair, "--rules", "specdec", "--max-new-tokens", "2", "-k", "1"]) == 2
    assert "rule 'specdec' cannot be foreseen" in capsys.readouterr().err
