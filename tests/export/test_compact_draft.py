"""Compact drafts: folded into a plain model, refused for any target but their own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import spec_compile
from spec_compile.config import SpecConfig
from spec_compile.driver import capture_pair, compile, open_pair, run_pipeline
from spec_compile.errors import CheckpointError, ConfigError
from spec_compile.export.checkpoint import load_model, open_checkpoint
from spec_compile.export.compact_draft import load_compact_draft
from spec_compile.export.tokenizer_files import read_tokenizer
from tests.helpers.compact_drafts import IDS, WIDTH, save_compact_draft
from tests.helpers.tiny_models import save_tiny_model

SIZES: dict[str, Any] = {"num_hidden_layers": 1}
CONFIG = SpecConfig(num_speculative_tokens=2, max_length=24, batch_size=4)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compact") / "target"
    return save_tiny_model(folder, tokenizer=True, **SIZES)


@pytest.fixture
def draft(target: Path, tmp_path: Path) -> Path:
    return save_compact_draft(tmp_path / "draft", target)


def edit_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def edit_weights(folder: Path, **weights: torch.Tensor) -> None:
    path = folder / "model.safetensors"
    save_file(load_file(path) | {k.replace("__", "."): v for k, v in weights.items()}, path)


def load(target: Path, draft: Path) -> torch.nn.Module:
    first, second = open_checkpoint(target), open_checkpoint(draft)
    model, ids = load_model(first, torch.float32), read_tokenizer(first).ids()
    return load_compact_draft(draft, second.config, model, ids, torch.float32).model


def test_embeddings_are_the_target_s_projected_and_head_rows_stand_at_their_ids(
    target: Path, draft: Path
) -> None:
    model = load(target, draft)
    stored = load_file(draft / "model.safetensors")
    embeddings = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    weights = model.state_dict()
    projected = embeddings @ stored["embed_projection.weight"].float().T
    torch.testing.assert_close(weights["model.embed_tokens.weight"], projected)
    assert torch.equal(weights["lm_head.weight"][list(IDS)], stored["lm_head.weight"].float())
    others = [index for index in range(len(embeddings)) if index not in IDS]
    assert not weights["lm_head.weight"][others].any()
    assert weights["model.norm.weight"].shape == (WIDTH,)


@pytest.fixture(scope="module")
def bundles(target: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pair in both fusions; the draft's positions turn at a speed of their own."""
    folder = tmp_path_factory.mktemp("bundles")
    rope = {"rope_type": "default", "rope_theta": 3.0}
    draft = save_compact_draft(folder / "draft", target, rope_parameters=rope)
    return {
        fusion: compile(str(target), str(draft), folder / fusion, replace(CONFIG, fusion=fusion))
        for fusion in ("verify", "step")
    }


@pytest.mark.parametrize("fusion", ["verify", "step"])
def test_compiles_into_a_bundle_that_gives_the_target_s_tokens(
    bundles: dict[str, Path], fusion: str
) -> None:
    # Neither the whole head nor the target's embeddings go along a second time.
    names = sorted(path.name for path in bundles[fusion].glob("*.weights"))
    assert names == ["draft.weights", "target.weights"]
    decoder = spec_compile.load(bundles[fusion])
    plain, fast = (
        decoder.generate([5, 6, 7], max_new_tokens=8, ignore_eos=True, speculative=speculative)
        for speculative in (False, True)
    )
    assert fast.token_ids == plain.token_ids


def test_both_fusions_propose_the_same(bundles: dict[str, Path]) -> None:
    """Constants of draft and target that have one name stay apart in the one graph of `step`."""
    prompts = [[5, 6, 7, 9, 11], [8], [3, 3, 4]]
    verify, step = (
        spec_compile.load(bundles[fusion]).generate(
            prompts, max_new_tokens=16, ignore_eos=True, temperature=2.0, seed=5
        )
        for fusion in ("verify", "step")
    )
    assert [one.token_ids for one in verify] == [one.token_ids for one in step]
    accepted = [one.stats.num_accepted_tokens for one in verify]
    assert accepted == [one.stats.num_accepted_tokens for one in step]
    assert sum(accepted) > 0


def test_the_law_that_it_proposes_from_is_zero_elsewhere(target: Path, draft: Path) -> None:
    pair = open_pair(str(target), str(draft))
    captured = capture_pair(pair, CONFIG)
    assert captured.draft_token_ids == IDS
    graph = run_pipeline(captured, CONFIG).graphs["draft"]
    shapes = {spec.name: spec.shape for spec in graph.outputs}
    assert shapes["draft_probs"] == ("B", 2, captured.vocab_size)


def test_refuses_it_as_a_target(draft: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is a compact draft, which has no embeddings"):
        open_pair(str(draft), str(draft))


def test_refuses_a_second_vocabulary(target: Path, draft: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("abc")
    config = SpecConfig(
        num_speculative_tokens=2, max_length=24, draft_vocab=8, draft_vocab_text=str(text)
    )
    with pytest.raises(ConfigError, match=r"brings its own tokens; leave out draft_vocab$"):
        capture_pair(open_pair(str(target), str(draft)), config)


def test_refuses_a_target_with_other_weights(draft: Path, tmp_path: Path) -> None:
    other = save_tiny_model(tmp_path / "other", seed=1, tokenizer=True, **SIZES)
    with pytest.raises(CheckpointError, match=r"trained for a target with other embeddings; give"):
        load(other, draft)


def test_refuses_a_target_of_another_size(draft: Path, tmp_path: Path) -> None:
    other = save_tiny_model(tmp_path / "other", tokenizer=True, hidden_size=48, **SIZES)
    with pytest.raises(
        CheckpointError, match=r"with embeddings \[64, 32\], this one's are \[64, 48\]; give"
    ):
        load(other, draft)


def test_refuses_a_target_with_another_tokenizer(draft: Path, tmp_path: Path) -> None:
    other = save_tiny_model(tmp_path / "other", **SIZES)
    with pytest.raises(CheckpointError, match=r"trained for a target with another tokenizer; give"):
        load(other, draft)


@pytest.mark.parametrize("field", ["num_output_tokens", "target_embedding_sha256"])
def test_refuses_a_config_that_lacks_a_fact(target: Path, draft: Path, field: str) -> None:
    edit_config(draft, **{field: None})
    with pytest.raises(CheckpointError, match=rf"config\.json has no sound {field}$"):
        load(target, draft)


@pytest.mark.parametrize(
    "name, weight, reason",
    [
        ("lm_head__weight", torch.zeros(3, WIDTH), r"lm_head\.weight is \[3, 16\], config\.json"),
        ("extra", torch.zeros(1), r"the weight extra is \[1\], config\.json says no such weight"),
        ("token_ids", torch.arange(len(IDS)).flip(0).int(), r"token_ids are not ascending ids"),
        ("token_ids", 100 + torch.arange(len(IDS)).int(), r"token_ids are not ascending ids"),
        (
            "embed_projection__weight",
            torch.full((WIDTH, 32), np.nan),
            r"embed_projection\.weight holds NaN or infinity",
        ),
    ],
)
def test_refuses_weights_that_do_not_fit(
    target: Path, draft: Path, name: str, weight: torch.Tensor, reason: str
) -> None:
    edit_weights(draft, **{name: weight})
    with pytest.raises(CheckpointError, match=reason):
        load(target, draft)
