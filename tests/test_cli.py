"""The command line: what it prints where, and its exit codes."""

from __future__ import annotations

import importlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from spec_compile.cli import COMMANDS, main
from spec_compile.runtime.api import load
from tests.helpers.toy_bundle import Toy, write_toy_bundle


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A toy bundle; do not change it."""
    return str(write_toy_bundle(Toy(), tmp_path_factory.mktemp("cli") / "bundle"))


def spec_compile(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    command = [sys.executable, "-m", "spec_compile.cli", *arguments]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_exists(command: str) -> None:
    module = importlib.import_module(f"spec_compile.commands.{command}")
    assert callable(module.add_arguments)
    assert callable(module.run)


def test_text_on_stdout_statistics_on_stderr(
    bundle: str, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = load(bundle).generate("ab", max_new_tokens=9, temperature=1.0, seed=4)
    arguments = ["--max-new-tokens", "9", "--temperature", "1", "--seed", "4"]
    assert main(["generate", bundle, "--prompt", "ab", *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{expected.text}\n"
    assert len(captured.err.splitlines()) == 1
    assert f"{len(expected.token_ids)} tokens in" in captured.err
    assert "seed 4" in captured.err


def test_json_is_one_object(bundle: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", bundle, "--prompt-ids", "1,2", "--json", "--stop", "c"]) == 0
    captured = capsys.readouterr()
    raw = json.loads(captured.out)
    expected = load(bundle).generate([1, 2], stop="c")
    assert raw["text"] == expected.text
    assert raw["token_ids"] == list(expected.token_ids)
    assert raw["finish_reason"] == expected.finish_reason
    assert raw["stats"]["num_rounds"] == expected.stats.num_rounds
    assert captured.err == ""


def test_prompt_from_file_and_stdin(bundle: str, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("ab c\n")
    runs = [
        spec_compile("generate", bundle, "--prompt", "ab c"),
        spec_compile("generate", bundle, "--prompt-file", str(file)),
        spec_compile("generate", bundle, "--prompt-file", "-", stdin="ab c\n"),
        spec_compile("-q", "generate", bundle, stdin="ab c"),
    ]
    assert [run.returncode for run in runs] == [0] * 4
    assert len({run.stdout for run in runs}) == 1
    assert runs[-1].stderr == ""


def test_every_option_reaches_the_decoder(bundle: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--ignore-eos", "--chat", "--target-only", "--no-verify-hash", "--num-threads", "1"]
    numbers = ["--top-k", "5", "--top-p", "0.9", "--min-p", "0.1", "--max-new-tokens", "7"]
    command = ["generate", bundle, "--prompt", "a", "--json", "--seed", "1", *flags, *numbers]
    assert main(command) == 0
    raw = json.loads(capsys.readouterr().out)
    expected = load(bundle).generate(
        "a", max_new_tokens=7, ignore_eos=True, chat=True, speculative=False
    )
    assert raw["token_ids"] == list(expected.token_ids)
    assert raw["stats"]["num_draft_tokens"] == 0


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (["--prompt", ""], 1, "empty"),
        (["--prompt", "a" * 48], 1, "holds 47"),
        (["--prompt-ids", "99"], 1, "token id 99"),
        (["--prompt-file", "/no/such/file"], 1, "No such file"),
        (["--prompt-ids", "1,x"], 2, "--prompt-ids"),
        (["--prompt", "a", "--temperature", "-1"], 2, "temperature"),
        (["--prompt", "a", "--temperature", "nan"], 2, "temperature"),
        (["--prompt", "a", "--top-p", "0"], 2, "top_p"),
        (["--prompt", "a", "--max-new-tokens", "0"], 2, "max_new_tokens"),
        (["--prompt", "a", "--num-threads", "0"], 2, "num_threads"),
        (["--prompt", "a", "--seed", "-1"], 2, "seed"),
    ],
)
def test_bad_request_is_one_line(
    bundle: str,
    capsys: pytest.CaptureFixture[str],
    arguments: Sequence[str],
    code: int,
    message: str,
) -> None:
    assert main(["generate", bundle, *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert message in captured.err


@pytest.mark.parametrize("command", ["generate", "inspect"])
def test_no_bundle_is_one_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--prompt", "a"] if command == "generate" else []
    assert main([command, "/no/bundle", *arguments]) == 1
    assert capsys.readouterr().err == "spec-compile: error: /no/bundle: no such bundle\n"


@pytest.mark.parametrize(
    "arguments", [[], ["conquer"], ["generate"], ["inspect", "x", "--colour"], ["--nonsense"]]
)
def test_wrong_usage_is_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "usage: spec-compile" in capsys.readouterr().err


def test_inspect_tells_what_is_inside(bundle: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", bundle]) == 0
    text = capsys.readouterr().out
    for part in ("rejection (exact", "graph verify", "TensorScatter", "verify.onnx", "apache-2.0"):
        assert part in text


def test_inspect_json(bundle: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", bundle, "--json"]) == 0
    raw = json.loads(capsys.readouterr().out)
    assert raw["config"]["acceptance"] == "rejection"
    assert raw["operators"]["draft"]["TensorScatter"] == 2
    assert set(raw["graphs"]) == {"draft", "verify", "target"}


def test_interrupt_is_one_line(bundle: str) -> None:
    code = (
        "import sys, signal, os, spec_compile.runtime.decoder as d, spec_compile.cli as c\n"
        # A shell that runs this in the background has told it to ignore interrupts.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "run = d.Rounds.run\n"
        "d.Rounds.run = lambda self: (os.kill(os.getpid(), signal.SIGINT), run(self))\n"
        "sys.exit(c.main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", code, "generate", bundle, "--prompt", "ab"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 130
    assert run.stderr == "spec-compile: interrupted\n"


def test_reader_that_leaves_is_no_error(bundle: str) -> None:
    command = [sys.executable, "-m", "spec_compile.cli", "generate", bundle, "--prompt", "ab"]
    reader, writer = os.pipe()
    os.close(reader)
    run = subprocess.run(
        command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    os.close(writer)
    assert run.returncode == 128 + signal.SIGPIPE
    assert run.stderr == ""


def test_closed_stdout_is_no_error(bundle: str) -> None:
    command = [sys.executable, "-m", "spec_compile.cli", "generate", bundle, "--prompt", "ab"]
    closed = shlex.join(command) + " >&-"
    run = subprocess.run(
        ["sh", "-c", closed], stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    assert run.returncode == 0
    assert len(run.stderr.splitlines()) == 1


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith("spec-compile 0.")


def test_debug_log_goes_to_stderr(bundle: str) -> None:
    run = spec_compile("inspect", bundle, "--json", "-vv")
    assert json.loads(run.stdout)
    assert "DEBUG spec_compile.runtime.loader: checked 6 files" in run.stderr
