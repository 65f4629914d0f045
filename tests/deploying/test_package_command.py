"""`spec-compile package --format triton`: a whole repository or nothing."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spec_compile.cli import main
from spec_compile.deploying import triton
from spec_compile.runtime.async_decoder import AsyncDecoder
from spec_compile.runtime.loader import open_bundle
from spec_compile.runtime.requests import GenerationOptions
from tests.helpers.small_disk import small_disk
from tests.helpers.toy_bundle import Toy, write_toy_bundle


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_bundle(Toy(), tmp_path_factory.mktemp("packaged") / "toy")


def package(bundle: Path, output: Path, *options: str) -> int:
    return main(["package", str(bundle), "--format", "triton", "-o", str(output), *options])


def everything(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_the_repository_holds_model_bundle_and_instructions(bundle: Path, tmp_path: Path) -> None:
    assert package(bundle, tmp_path / "models") == 0
    model = tmp_path / "models" / "toy"
    assert everything(model / "1" / "bundle") == everything(bundle)
    open_bundle(model / "1" / "bundle")
    assert (model / "1" / "model.py").read_text() == Path(triton._MODEL).read_text()
    assert 'name: "toy"' in (model / "config.pbtxt").read_text()
    readme = (tmp_path / "models" / "README.md").read_text()
    assert "/v2/models/toy/generate_stream" in readme
    assert "$PWD:/models:ro" in readme
    assert [name for name in everything(tmp_path) if name.startswith(".")] == []


def test_settings_are_the_loaders_arguments(bundle: Path, tmp_path: Path) -> None:
    options = ["--slots", "2", "--max-queue", "5", "--prefill-chunk", "7", "--num-threads", "1"]
    assert package(bundle, tmp_path / "out", *options, "--request-seconds", "9.5") == 0
    config = (tmp_path / "out" / "toy" / "config.pbtxt").read_text()
    pairs = re.findall(r'parameters \{ key: "(\w+)" +value \{ string_value: "(.*?)" \} \}', config)
    assert dict(pairs) == {
        "num_slots": "2",
        "max_queue": "5",
        "prefill_chunk": "7",
        "num_threads": "1",
        "request_seconds": "9.5",
    }
    takes = inspect.signature(AsyncDecoder.load).parameters
    assert set(dict(pairs)) - {"request_seconds"} <= set(takes)


def test_inputs_are_options_and_documented(bundle: Path, tmp_path: Path) -> None:
    assert package(bundle, tmp_path / "out") == 0
    config = (tmp_path / "out" / "toy" / "config.pbtxt").read_text()
    inputs, outputs = config.split("output [")
    names = re.findall(r'\{ name: "(\w+)"', inputs)
    assert len(re.findall(r"optional: true", inputs)) == len(names)
    options = set(names) - {"text_input", "input_ids", "stream"}
    assert options <= set(GenerationOptions.__dataclass_fields__)
    readme = (tmp_path / "out" / "README.md").read_text()
    names += re.findall(r'\{ name: "(\w+)"', outputs)
    assert [name for name in names if f"`{name}`" not in readme] == []


def test_json_lists_the_files(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert package(bundle, tmp_path / "out", "--json", "--model-name", "other") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["path"] == str(tmp_path / "out")
    files = {tmp_path / "out" / name: size for name, size in report["files"].items()}
    assert {path: path.stat().st_size for path in files} == files
    assert report["size"] == sum(files.values())
    assert "other/1/model.py" in report["files"]


@pytest.mark.parametrize(
    "options, message",
    [
        (["--model-name", "a/b"], "model name 'a/b'"),
        (["--model-name", ".."], "model name '..'"),
        (["--slots", "0"], "num_slots=0"),
        (["--max-queue", "0"], "max_queue=0"),
        (["--num-threads", "0"], "num_threads=0"),
        (["--request-seconds", "0"], "request_seconds=0.0"),
        (["--request-seconds", "nan"], "request_seconds=nan"),
    ],
)
def test_a_wrong_option_is_named(
    options: list[str],
    message: str,
    bundle: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert package(bundle, tmp_path / "out", *options) == 2
    assert message in capsys.readouterr().err
    assert everything(tmp_path) == []


def test_an_existing_output_is_left_alone(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    assert package(bundle, tmp_path / "out") == 1
    assert "exists; remove it" in capsys.readouterr().err
    assert everything(tmp_path) == ["out"]


def test_a_damaged_bundle_is_refused(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = shutil.copytree(bundle, tmp_path / "damaged")
    graph = damaged / "verify.onnx"
    graph.write_bytes(graph.read_bytes()[::-1])
    assert package(damaged, tmp_path / "out") == 1
    assert "SHA-256" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_full_disk_leaves_nothing(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_disk(tmp_path / "disk", 16 << 10) as disk:
        assert package(bundle, disk / "out") == 1
        assert "No space left" in capsys.readouterr().err
        assert everything(disk) == []


def test_the_documented_command_runs(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "embedding.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^spec-compile (package .*)$", page, flags=re.MULTILINE)
    shutil.copytree(bundle, tmp_path / "bundle")
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 0
    assert (tmp_path / "models" / "my-model" / "config.pbtxt").is_file()


def test_packaging_needs_nothing_of_the_compiler(bundle: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from spec_compile.cli import main; code = main(sys.argv[1:]);"
        "assert not {'torch', 'transformers', 'onnx'} & set(sys.modules); sys.exit(code)"
    )
    arguments = ["package", str(bundle), "--format", "triton", "-o", str(tmp_path / "out")]
    subprocess.run([sys.executable, "-c", code, *arguments], check=True)
    assert (tmp_path / "out" / "toy" / "1" / "model.py").is_file()
