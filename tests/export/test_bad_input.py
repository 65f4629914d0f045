"""Bad input to `export`: one clear line, the right exit code, and nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.helpers.export_command import ExportCommand
from tests.helpers.tiny_models import VOCAB_SIZE, save_tiny_model, tokens, write_tokenizer

Damage = Callable[[Path], object]
WEIGHT = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sound models `target` and `draft`; do not change them."""
    folder = tmp_path_factory.mktemp("models")
    save_tiny_model(folder / "target", tokenizer=True)
    save_tiny_model(folder / "draft", seed=1, num_hidden_layers=1, tokenizer=True)
    return folder


@pytest.fixture
def target(models: Path, tmp_path: Path) -> Path:
    """A copy of the target, to be damaged."""
    return Path(shutil.copytree(models / "target", tmp_path / "model"))


@pytest.fixture
def export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> ExportCommand:
    """The command, with an empty folder to write into."""
    (tmp_path / "out").mkdir()
    return ExportCommand(capsys, tmp_path / "out")


def configure(**fields: Any) -> Damage:
    """Change fields of config.json."""

    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return change


def reweigh(change: Callable[[dict[str, torch.Tensor]], object]) -> Damage:
    """Change the stored weights."""

    def rewrite(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors", {"format": "pt"})

    return rewrite


def put(name: str, content: str | bytes) -> Damage:
    """Overwrite one file."""
    raw = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(raw)


def remove(name: str) -> Damage:
    """Remove one file."""
    return lambda folder: (folder / name).unlink()


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def pickled_only(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def index(*names: str, make: str | None = None) -> Damage:
    """Weights in shards called `names`, of which only `make` exists."""

    def write(folder: Path) -> None:
        weights = folder / "model.safetensors"
        if make is None:
            weights.unlink()
        else:
            weights.rename(folder / make)
        shards = {f"weight.{number}": name for number, name in enumerate(names)}
        path = folder / "model.safetensors.index.json"
        path.write_text(json.dumps({"metadata": {}, "weight_map": shards}))

    return write


DAMAGES: dict[str, tuple[Damage, str]] = {
    "no config": (remove("config.json"), "has no config.json"),
    "no weights": (remove("model.safetensors"), "has no model.safetensors"),
    "truncated weights": (truncate, "model.safetensors is damaged or cut short"),
    "empty weights": (put("model.safetensors", b""), "model.safetensors is damaged or cut short"),
    "weights are text": (put("model.safetensors", "no " * 99), "damaged or cut short"),
    "huge header": (put("model.safetensors", b"\xff" * 64), "damaged or cut short"),
    "pickled weights": (pickled_only, "has pickled weights only (pytorch_model.bin)"),
    "missing shard": (
        index("a.safetensors", "b.safetensors", make="a.safetensors"),
        "lacks b.safetensors, which its weight index names",
    ),
    "shard outside": (index("../x.safetensors"), "names '../x.safetensors', which is not a file"),
    "index without map": (put("model.safetensors.index.json", "{}"), "has no weight_map"),
    "index is no JSON": (put("model.safetensors.index.json", "{"), "is not valid JSON"),
    "missing weight": (reweigh(lambda all: all.pop(WEIGHT)), f"lacks the weight {WEIGHT}"),
    "wrong shape": (
        reweigh(lambda all: all.update({WEIGHT: torch.zeros(3, 5)})),
        f"the weight {WEIGHT} has shape [3, 5], config.json says [64, 32]",
    ),
    "weight is NaN": (
        reweigh(lambda all: all[WEIGHT].fill_(float("nan"))),
        f"the weight {WEIGHT} holds NaN or infinity",
    ),
    "config is no JSON": (put("config.json", "{"), "config.json is not valid JSON"),
    "config is no UTF-8": (put("config.json", b"\xff\xfe"), "config.json is not valid JSON"),
    "config nests too deep": (put("config.json", "[" * 99_999), "config.json is not valid JSON"),
    "config is a list": (put("config.json", "[]"), "does not hold a JSON object"),
    "config is empty": (put("config.json", "{}"), "Should have a `model_type` key"),
    "unknown model_type": (configure(model_type="zorg"), "has model type `zorg`"),
    "field of a wrong type": (configure(hidden_size="many"), "expected int, got str"),
    "no layers": (configure(num_hidden_layers=0), "num_hidden_layers is 0"),
    "code in the checkpoint": (
        configure(model_type="zorg", auto_map={"AutoConfig": "x.X"}),
        "needs code that comes with the checkpoint",
    ),
    "one is an encoder-decoder": (configure(model_type="t5"), "an encoder-decoder model"),
    "generation settings": (put("generation_config.json", "{"), "is not valid JSON"),
    "eos is text": (put("generation_config.json", '{"eos_token_id": "end"}'), "no token id"),
    "tokenizer": (put("tokenizer.json", "{}"), "tokenizer.json is damaged"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_checkpoint(name: str, target: Path, models: Path, export: ExportCommand) -> None:
    damage, message = DAMAGES[name]
    damage(target)
    assert message in export.refusal(target, models / "draft")
    assert message in export.refusal(models / "target", target)


def test_no_such_model(models: Path, export: ExportCommand) -> None:
    line = export.refusal("gpt-5", models / "draft")
    assert "no model 'gpt-5'" in line
    assert "llama, small" in line
    assert "no model './nowhere'" in export.refusal("./nowhere", models / "draft")
    assert "is a file" in export.refusal(__file__, models / "draft")


def test_hub_without_network(
    models: Path, export: ExportCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    line = export.refusal("nobody/nothing", models / "draft")
    assert "no folder 'nobody/nothing' here, and the hub did not give it" in line


def test_different_tokenizers_name_the_first_difference(
    target: Path, models: Path, export: ExportCommand
) -> None:
    changed = tokens()
    changed[7], changed[9] = changed[9], changed[7]
    write_tokenizer(target, changed)
    line = export.refusal(target, models / "draft")
    assert "different tokenizers: id 7 is 'i' in" in line
    assert "and 'g' in" in line


def test_longer_tokenizer_names_the_first_id_of_one_model_only(
    target: Path, models: Path, export: ExportCommand
) -> None:
    write_tokenizer(target, [*tokens(), "!"])
    line = export.refusal(target, models / "draft")
    assert f"id {len(tokens())} is '!' in {target} and missing in" in line


def test_tokenizer_in_one_model_only(target: Path, models: Path, export: ExportCommand) -> None:
    (target / "tokenizer.json").unlink()
    for pair in ((target, models / "draft"), (models / "draft", target)):
        line = export.refusal(*pair)
        assert f"{target} has no tokenizer" in line


@pytest.mark.slow
def test_heads_of_different_sizes_without_tokenizer(tmp_path: Path, export: ExportCommand) -> None:
    first = save_tiny_model(tmp_path / "first")
    second = save_tiny_model(tmp_path / "second", vocab_size=VOCAB_SIZE + 8)
    line = export.refusal(first, second)
    assert f"the target has {VOCAB_SIZE} token ids and the draft {VOCAB_SIZE + 8}" in line


@pytest.mark.slow
def test_tokenizer_larger_than_the_head(tmp_path: Path, export: ExportCommand) -> None:
    small = save_tiny_model(tmp_path / "small", vocab_size=16, tokenizer=True)
    line = export.refusal(small, small)
    assert "the tokenizer knows id 59, the target's head has only 16 outputs" in line


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["-k", "0"], "num_speculative_tokens=0"),
        (["-k", "-1"], "num_speculative_tokens=-1"),
        (["-k", "128"], "num_speculative_tokens=128 must be smaller than the 128 tokens"),
        (["-k", "64", "--max-length", "64"], "num_speculative_tokens=64 must be smaller than"),
        (["--max-length", "129"], "max_length=129 is more than the 128 positions of the target"),
        (["--max-length", "0"], "max_length=0"),
        (["--batch-size", "0"], "batch_size=0"),
        (["--acceptance", "always"], "acceptance='always' is not supported; choose one of greedy"),
        (["--fusion", "nuclear"], "fusion='nuclear' is not supported; choose one of verify"),
        (["--backend", "abacus"], "backend='abacus' is not supported; choose one of onnx"),
        (
            ["--backend", "tensorrt-rtx", "--quantize", "int4"],
            "quantize is not supported by backend='tensorrt-rtx'",
        ),
        (
            ["--backend", "torch", "--quantize", "int8"],
            "operator of ONNX Runtime; take backend='onnxruntime'",
        ),
        (["--compute-capability", "8.9"], "compute_capabilities is for backend='tensorrt-rtx'"),
        (["--dtype", "float16"], "dtype='float16' is not supported by backend='onnxruntime'"),
        (["--dtype", "float64"], "dtype='float64' is not supported; choose one of float32"),
        (["--dtype", "bfloat16"], "dtype='bfloat16' is not supported"),
        (["--draft-vocab", "8"], "draft_vocab and draft_vocab_text go together"),
        (["--quantize", "int3"], "quantize='int3' is not supported; choose one of int8, int4"),
        (["--quantize-draft", "fp8"], "quantize_draft='fp8' is not supported"),
        (
            ["--num-drafts", "2", "--acceptance", "rejection"],
            "acceptance='rejection' takes one draft a round, not 2",
        ),
        (["--num-drafts", "0"], "num_drafts=0 must be a whole number"),
        (["--acceptance", "kseq"], "acceptance='kseq' takes several drafts"),
        (
            ["--acceptance", "topk_plus_one", "--num-drafts", "2"],
            "acceptance='topk_plus_one' takes drafts of one token",
        ),
        (["--dump", __file__], "is a file; give a folder"),
    ],
)
def test_unusable_option(
    arguments: list[str], message: str, models: Path, export: ExportCommand
) -> None:
    line = export.refusal(models / "target", models / "draft", *arguments, code=2)
    assert message in line


def test_dump_into_the_output(models: Path, export: ExportCommand) -> None:
    inside = str(export.output / "dump")
    line = export.refusal(models / "target", models / "draft", "--dump", inside, code=2)
    assert "lies in the output folder" in line


@pytest.mark.parametrize("kind", ["folder", "file", "dangling link"])
def test_output_exists(kind: str, models: Path, export: ExportCommand) -> None:
    if kind == "folder":
        export.output.mkdir()
    elif kind == "file":
        export.output.write_text("mine")
    else:
        export.output.symlink_to("nowhere")
    line = export.refusal(models / "target", models / "draft")
    assert line == f"{export.output} exists; remove it or choose another output folder"
    assert kind != "file" or export.output.read_text() == "mine"


def test_output_below_a_file(tmp_path: Path, models: Path, capsys: Any) -> None:
    (tmp_path / "file").write_text("mine")
    line = ExportCommand(capsys, tmp_path).refusal(
        models / "target", models / "draft", "-o", str(tmp_path / "file" / "deep" / "bundle")
    )
    assert "cannot write to" in line


@pytest.fixture
def unprivileged() -> Iterator[None]:
    """No right to write everywhere, also when the tests run as root."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield
    os.seteuid(user)


@pytest.fixture
def locked() -> Iterator[Path]:
    """A folder that anybody can list and nobody but root can write to."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)
    folder.rmdir()


def test_parent_cannot_be_written(
    locked: Path, unprivileged: None, capsys: pytest.CaptureFixture[str]
) -> None:
    export = ExportCommand(capsys, locked)
    assert export.refusal("a", "b") == f"cannot write to {locked}: Permission denied"
    deep = str(locked / "new" / "bundle")
    assert export.refusal("a", "b", "-o", deep) == f"cannot write to {locked}: Permission denied"


def test_parents_are_made_late(tmp_path: Path, models: Path, export: ExportCommand) -> None:
    deep = str(export.parent / "a" / "b" / "bundle")
    assert "no model" in export.refusal("nothing", models / "draft", "-o", deep)


UNCAPTURABLE: dict[str, tuple[str, dict[str, Any], str]] = {
    "mamba": ("mamba", {"state_size": 4}, "MambaForCausalLM carries a recurrent state"),
    "recurrent gemma": ("recurrent_gemma", {}, "carries a recurrent state"),
    "bloom": ("bloom", {"n_head": 4, "n_layer": 2}, "BloomForCausalLM computes attention in code"),
    "dynamic RoPE": (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
        "export with --max-length 64 or less",
    ),
}


@pytest.mark.parametrize("name", UNCAPTURABLE)
def test_feature_that_cannot_be_captured(
    name: str, tmp_path: Path, models: Path, export: ExportCommand
) -> None:
    kind, fields, message = UNCAPTURABLE[name]
    folder = save_tiny_model(tmp_path / "model", kind, tokenizer=True, **fields)
    if name == "dynamic RoPE":
        # As models are published: trained on the shorter length, stretched by the factor.
        rope = {**fields["rope_parameters"], "original_max_position_embeddings": 64}
        configure(rope_parameters=rope)(folder)
    assert message in export.refusal(folder, models / "draft")
