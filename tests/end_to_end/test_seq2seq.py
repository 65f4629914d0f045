"""Bundles of encoder-decoder models: exported, loaded and run as a user does."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel

from spec_compile.cli import main
from spec_compile.config import SpecConfig
from spec_compile.driver import compile as compile_pair
from spec_compile.errors import CheckpointError, ConfigError, GenerationError
from spec_compile.export.checkpoint import open_checkpoint
from spec_compile.export.draft_models import check_source_options
from spec_compile.runtime.api import Decoder, load
from spec_compile.runtime.shared_decoder import SharedDecoder
from tests.helpers.captured import random_tokens
from tests.helpers.tiny_models import save_tiny_model, tokens, write_tokenizer
from tests.helpers.tiny_seq2seq import eager_seq2seq_logits, save_tiny_seq2seq, tiny_seq2seq

V, MAX_LENGTH = len(tokens()), 24
SOURCE_LENGTHS = (1, 7, MAX_LENGTH, 4)
# Of weights that answer different sources differently.
SEEDS = {"t5": 8, "bart": 5, "marian": 6}


def config_of(k: int, fusion: str = "verify", acceptance: str = "rejection") -> SpecConfig:
    return SpecConfig(
        num_speculative_tokens=k,
        fusion=fusion,
        acceptance=acceptance,
        max_length=MAX_LENGTH,
        batch_size=4,
    )


Case = tuple[str, str, SpecConfig]
FAST: list[Case] = [
    ("t5", "good", config_of(3)),
    ("bart", "wrong", config_of(2, "verify", "greedy")),
    ("marian", "self", config_of(2, "step", "match")),
]
SLOW: list[Case] = [
    *((kind, "good", config_of(4, "step", "block")) for kind in ("t5", "bart")),
    *((kind, "self", config_of(1)) for kind in ("t5", "bart", "marian")),
    ("marian", "wrong", config_of(7, "verify", "block")),
    ("t5", "self", config_of(7, "step", "greedy")),
]


def case_id(case: Case) -> str:
    kind, draft, config = case
    return f"{kind}-{draft}-{config.fusion}-{config.acceptance}-{config.num_speculative_tokens}"


CASES = [
    *(pytest.param(case, id=case_id(case)) for case in FAST),
    *(pytest.param(case, id=case_id(case), marks=pytest.mark.slow) for case in SLOW),
]
Folders = Callable[[str, str], Path]
Bundles = Callable[[Case], Decoder]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """`folders(kind, which)`: a checkpoint with tokenizer, `target` or a draft of it."""

    @cache
    def save(kind: str, which: str) -> Path:
        folder = tmp_path_factory.mktemp("models") / which
        # As many layers on either side: transformers sizes its cache by the encoder's.
        layers = "num_layers" if kind == "t5" else "encoder_layers"
        sizes = {"vocab_size": V, "tie_word_embeddings": False, layers: 2}
        model = tiny_seq2seq(kind, seed=SEEDS[kind], **sizes)
        noise = {"good": 0.02, "wrong": 1.0}.get(which, 0.0)
        generator = torch.Generator().manual_seed(4)
        for weight in model.parameters():
            if weight.requires_grad:
                weight.data += noise * torch.randn(weight.shape, generator=generator)
        model.save_pretrained(folder)
        write_tokenizer(folder)
        return folder

    return save


@pytest.fixture(scope="module")
def bundles(folders: Folders, tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    """`bundles(case)`: the decoder of the target with that draft, on one thread."""

    @cache
    def build(kind: str, draft: str, config: SpecConfig) -> Decoder:
        output = tmp_path_factory.mktemp("bundles") / "bundle"
        compile_pair(str(folders(kind, "target")), str(folders(kind, draft)), output, config)
        return load(output, num_threads=1)

    return lambda case: build(*case)


def reference(folders: Folders, kind: str) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForSeq2SeqLM.from_pretrained(
        folders(kind, "target"), attn_implementation="eager"
    )
    model.train(False)
    return model


def source_of(length: int) -> list[int]:
    found: list[int] = random_tokens(length, seed=length, vocab_size=V).tolist()
    return found


def hugging_face(model: PreTrainedModel, source: Sequence[int], **options: object) -> list[int]:
    """What `transformers` generates greedily, without the token that it starts with."""
    output = model.generate(  # type: ignore[operator]
        torch.tensor([list(source)]), do_sample=False, num_beams=1, **options
    )
    found: list[int] = output[0, 1:].tolist()
    return found


@pytest.mark.parametrize("case", CASES)
def test_greedy_output_is_that_of_transformers(
    folders: Folders, bundles: Bundles, case: Case
) -> None:
    """Sources from one token to capacity; to the last slot, and with the end of a text."""
    decoder, model = bundles(case), reference(folders, case[0])
    for length in (1, 2, 7, MAX_LENGTH):
        source = source_of(length)
        expected = hugging_face(model, source, max_length=MAX_LENGTH, eos_token_id=-1)
        assert len(expected) == MAX_LENGTH - 1
        result = decoder.generate(source, max_new_tokens=99, ignore_eos=True)
        assert list(result.token_ids) == expected
        assert result.finish_reason == "capacity"
        alone = decoder.generate(source, max_new_tokens=99, ignore_eos=True, speculative=False)
        assert list(alone.token_ids) == expected
        ended = decoder.generate(source, max_new_tokens=12)
        assert list(ended.token_ids) == hugging_face(model, source, max_new_tokens=12)
        assert ended.prompt_length == length


@pytest.mark.parametrize("case", CASES)
def test_acceptance_is_as_the_draft_is(bundles: Bundles, case: Case) -> None:
    """The target as its own draft is always right, also after a fully accepted round."""
    decoder, k = bundles(case), case[2].num_speculative_tokens
    found = [
        decoder.generate(source_of(length), max_new_tokens=3 * (k + 1), ignore_eos=True).stats
        for length in (2, 5, 9, 14, 20)
    ]
    proposed = sum(stats.num_draft_tokens for stats in found)
    rate = sum(stats.num_accepted_tokens for stats in found) / proposed
    if case[1] == "self":
        assert rate == 1.0
    elif case[1] == "wrong":
        assert rate < 0.5
    else:
        assert 0.0 < rate < 1.0


@pytest.mark.parametrize("case", CASES)
def test_rows_of_a_batch_behave_like_separate_runs(bundles: Bundles, case: Case) -> None:
    """Ragged sources, seeds of their own."""
    decoder, seeds = bundles(case), [11, 12, 13, 14]
    temperature = 0.0 if case[2].acceptance == "greedy" else 0.9
    sources = [source_of(length) for length in SOURCE_LENGTHS]

    def generate(prompt: list[list[int]], seed: list[int]) -> list[tuple[int, ...]]:
        found = decoder.generate(prompt, max_new_tokens=12, temperature=temperature, seed=seed)
        return [result.token_ids for result in found]

    together = generate(sources, seeds)
    alone = [generate([source], [seed])[0] for source, seed in zip(sources, seeds, strict=True)]
    assert together == alone
    assert len(set(together)) > 1


@pytest.mark.parametrize("case", CASES)
def test_logits_are_the_model_s(folders: Folders, bundles: Bundles, case: Case) -> None:
    decoder, model = bundles(case), reference(folders, case[0])
    start = list(decoder.manifest.decoder_start_ids)
    assert start == [model.config.decoder_start_token_id]
    for length in SOURCE_LENGTHS:
        expected = eager_seq2seq_logits(model, source_of(length), start)[-1].numpy()
        np.testing.assert_allclose(
            decoder.next_logits(source_of(length)),
            expected,
            rtol=0,
            atol=1e-5 * np.abs(expected).max(),
        )


def test_a_text_is_encoded_and_answered(folders: Folders, bundles: Bundles) -> None:
    decoder, model = bundles(FAST[0]), reference(folders, "t5")
    assert decoder.tokenizer is not None
    result = decoder.generate("hello", max_new_tokens=8)
    source = decoder.tokenizer.encode("hello")
    assert list(result.token_ids) == hugging_face(model, source, max_new_tokens=8)
    assert "".join(decoder.stream("hello", max_new_tokens=8)) == result.text


def test_a_source_that_does_not_fit_is_refused(bundles: Bundles) -> None:
    decoder = bundles(FAST[0])
    with pytest.raises(GenerationError, match=f"the source has {MAX_LENGTH + 1} tokens"):
        decoder.generate([5] * (MAX_LENGTH + 1))
    with pytest.raises(GenerationError, match="is empty"):
        decoder.generate("")


def test_continuous_batching_is_refused(bundles: Bundles) -> None:
    decoder = bundles(FAST[0])
    with pytest.raises(ConfigError, match="does not serve encoder-decoder models"):
        SharedDecoder(decoder.bundle, decoder.engine, decoder.tokenizer)


def test_a_forced_first_token_is_part_of_the_start(tmp_path: Path) -> None:
    folder = save_tiny_seq2seq(tmp_path / "model", "bart")
    assert open_checkpoint(str(folder)).decoder_start_ids == (2,)
    settings = {"decoder_start_token_id": 2, "forced_bos_token_id": 7}
    (folder / "generation_config.json").write_text(json.dumps(settings), encoding="utf-8")
    assert open_checkpoint(str(folder)).decoder_start_ids == (2, 7)


def test_kinds_that_do_not_fit_are_refused(folders: Folders, tmp_path: Path) -> None:
    causal = str(save_tiny_model(tmp_path / "causal", vocab_size=V, tokenizer=True))
    source = str(folders("t5", "target"))
    output = tmp_path / "bundle"
    with pytest.raises(CheckpointError, match="does not read the source"):
        compile_pair(source, causal, output)
    with pytest.raises(CheckpointError, match="no source text"):
        compile_pair(causal, source, output)
    assert not output.exists()


def test_a_backend_without_encoders_is_refused(folders: Folders) -> None:
    config = SpecConfig(backend="tensorrt-rtx", dtype="float16")
    with pytest.raises(ConfigError, match=r"backend='tensorrt-rtx' runs no encoder-decoder"):
        check_source_options(open_checkpoint(str(folders("t5", "target"))), config)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and messages of one command."""
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_commands_take_such_bundles(
    folders: Folders, bundles: Bundles, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = str(bundles(FAST[0]).bundle.folder)
    options = ["--prompt", "hello", "--max-new-tokens", "6"]
    code, out, _ = run(capsys, "generate", bundle, *options, "--json")
    expected = bundles(FAST[0]).generate("hello", max_new_tokens=6)
    assert code == 0 and tuple(json.loads(out)["token_ids"]) == expected.token_ids
    code, out, _ = run(capsys, "inspect", bundle)
    assert code == 0
    assert "prompts      source texts, read by an encoder; outputs begin with [1]" in out
    assert "graph draft_encoder (draft_encoder.onnx)" in out
    code, out, err = run(capsys, "bench", bundle, *options[2:], "--repeat", "1", "--json")
    results = json.loads(out)["results"]
    assert code == 0
    assert [one["outputs_equal_to_target_only"] for one in results] == [results[0]["prompts"]] * 2
    code, out, err = run(capsys, "plan", bundle)
    assert code == 2 and "plan does not foresee encoder-decoder models" in err


def test_check_proves_such_a_bundle(
    folders: Folders, bundles: Bundles, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, target = str(bundles(FAST[0]).bundle.folder), str(folders("t5", "target"))
    few = ["--law-samples", "400", "--max-new-tokens", "8"]
    code, out, _ = run(capsys, "check", bundle, "--target", target, *few, "--json")
    found = {check["name"]: check["status"] for check in json.loads(out)["checks"]}
    assert found == dict.fromkeys(("files", "logits", "greedy", "law", "edges"), "pass")
    assert code == 0


def test_check_finds_another_target(
    bundles: Bundles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = save_tiny_seq2seq(tmp_path / "other", "t5", seed=1, vocab_size=V)
    bundle = str(bundles(FAST[0]).bundle.folder)
    parts = ["--target", str(other), "--greedy", "--max-new-tokens", "4", "--json"]
    code, out, _ = run(capsys, "check", bundle, *parts)
    assert code == 1
    assert [c["name"] for c in json.loads(out)["checks"] if c["status"] == "fail"] == ["logits"]
