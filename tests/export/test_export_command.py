"""`spec-compile export` from the command line to a bundle that generates."""

from __future__ import annotations

import argparse
import io
import json
import logging
import resource
import signal
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from spec_compile.cli import main
from spec_compile.commands.compile_steps import CompileSteps
from spec_compile.config import SpecConfig
from spec_compile.driver import steps
from spec_compile.manifest import MANIFEST_FILE, Manifest
from spec_compile.runtime.api import load
from tests.helpers.export_command import ExportCommand
from tests.helpers.small_disk import small_disk
from tests.helpers.tiny_models import VOCAB_SIZE, save_tiny_model, tokens

# The smallest compile: what is tested here does not depend on the rest.
SMALL = ("-k", "1", "--acceptance", "greedy", "--max-length", "32", "--batch-size", "3")
CONFIG = SpecConfig(num_speculative_tokens=1, acceptance="greedy", max_length=32, batch_size=3)


@dataclass(frozen=True)
class Exported:
    """One run of the command: its folder, its report, and where it dumped."""

    folder: Path
    report: dict[str, Any]
    dump: Path


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A pair whose heads are padded to different sizes, as arguments."""
    folder = tmp_path_factory.mktemp("pair")
    target = save_tiny_model(folder / "big", tokenizer=True, num_hidden_layers=1)
    draft = save_tiny_model(
        folder / "fast", seed=1, tokenizer=True, num_hidden_layers=1, vocab_size=VOCAB_SIZE + 8
    )
    return ["--target", str(target), "--draft", str(draft)]


@pytest.fixture(scope="module")
def exported(pair: list[str], tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The pair's bundle, made in a process of its own; do not change it."""
    folder = tmp_path_factory.mktemp("exported")
    output, dump = folder / "new" / "bundle", folder / "dump"
    arguments = [*pair, *SMALL, "-o", str(output), "--dump", str(dump), "--json"]
    command = [sys.executable, "-m", "spec_compile.cli", "export", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    return Exported(output, json.loads(run.stdout), dump)


def test_report_tells_the_truth(exported: Exported) -> None:
    report = exported.report
    files = {path.name: path.stat().st_size for path in exported.folder.iterdir()}
    assert report["path"] == str(exported.folder)
    assert report["files"] == files
    assert report["size"] == sum(files.values())
    assert 0 < sum(step["seconds"] for step in report["steps"]) <= report["seconds"]
    assert [step["name"] for step in report["steps"]] == steps(CONFIG)
    assert [f"pass {each['name']}" for each in report["passes"]] == steps(CONFIG)[3:-2]
    assert {each["name"]: each["rewrites"] for each in report["passes"]}["fuse_acceptance"] == 2


def test_only_the_bundle_is_left(exported: Exported) -> None:
    assert [path.name for path in exported.folder.parent.iterdir()] == ["bundle"]


def test_manifest_says_what_was_asked(exported: Exported) -> None:
    manifest = Manifest.from_json((exported.folder / MANIFEST_FILE).read_text())
    config = manifest.config
    assert (config.num_speculative_tokens, config.acceptance, config.fusion) == (
        1,
        "greedy",
        "verify",
    )
    assert (config.max_length, config.batch_size) == (32, 3)
    assert manifest.vocab_size == len(tokens())
    assert manifest.eos_token_ids == (0,)
    assert [model.source for model in manifest.models.values()] == ["big", "fast"]
    assert set(manifest.files) == {path.name for path in exported.folder.iterdir()} - {
        MANIFEST_FILE
    }
    assert str(exported.folder.parent) not in (exported.folder / MANIFEST_FILE).read_text()


def test_heads_of_different_sizes_generate(exported: Exported) -> None:
    decoder = load(exported.folder, num_threads=1)
    for prompt in ("a", "the end (is)"):
        fast, plain = (
            decoder.generate(
                prompt, max_new_tokens=12, temperature=0, ignore_eos=True, speculative=both
            )
            for both in (True, False)
        )
        assert fast.token_ids == plain.token_ids
        assert len(fast.token_ids) == 12


def test_dump_holds_each_program_that_changed(exported: Exported) -> None:
    names = sorted(path.stem.split("_", 1)[1] for path in exported.dump.iterdir())
    changed = [each["name"] for each in exported.report["passes"] if each["rewrites"]]
    assert names == sorted(["captured", *changed])
    assert "graph verify" in next(exported.dump.glob("*_fuse_acceptance.py")).read_text()


def test_an_export_is_never_overwritten(
    exported: Exported, pair: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = (exported.folder / MANIFEST_FILE).read_bytes()
    assert main(["export", *pair, "-o", str(exported.folder)]) == 1
    assert "exists; remove it" in capsys.readouterr().err
    assert (exported.folder / MANIFEST_FILE).read_bytes() == before


def test_help_needs_no_compiler() -> None:
    code = (
        "import sys, spec_compile.cli as c\n"
        "try: c.main(['export', '--help'])\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)


@pytest.mark.parametrize("missing", ["--target", "--draft", "-o"])
def test_required_options(missing: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"--target": "a", "--draft": "b", "-o": "c"}
    del given[missing]
    with pytest.raises(SystemExit) as stop:
        main(["export", *(part for option in given.items() for part in option)])
    assert stop.value.code == 2
    assert missing in capsys.readouterr().err


class Terminal(io.StringIO):
    """A terminal that remembers."""

    def isatty(self) -> bool:
        return True


def flags(**given: int) -> argparse.Namespace:
    """Parsed arguments, as far as progress reads them."""
    return argparse.Namespace(**{"quiet": 0, "verbose": 0, **given})


def test_progress_is_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with CompileSteps(["one", "two"], flags()) as progress:
        progress("one")
        progress("two")
    assert [name for name, _ in progress.finished] == ["one", "two"]
    assert "one [" in terminal.getvalue() and "1/2" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K"), "the bar is wiped away at the end"


@pytest.mark.parametrize("given", [{"quiet": 1}, {"verbose": 1}])
def test_no_bar_with_quiet_or_verbose(
    given: dict[str, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(logging.getLogger("spec_compile"), "handlers", [])
    with (
        caplog.at_level(logging.INFO, "spec_compile"),
        CompileSteps(["one"], flags(**given)) as progress,
    ):
        progress("one")
    assert terminal.getvalue() == ""
    assert caplog.messages == ["one"]


def test_warnings_of_libraries_are_for_verbose_runs() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for verbose in (0, 1):
            with CompileSteps(["one"], flags(verbose=verbose)):
                warnings.warn(f"verbose {verbose}", FutureWarning, stacklevel=1)
    assert [str(each.message) for each in seen] == ["verbose 1"]


def test_full_disk(pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with small_disk(tmp_path / "disk", 48 << 10) as disk:
        export = ExportCommand(capsys, disk)
        line = export.refusal(pair[1], pair[3], *SMALL)
        assert line == f"cannot write {export.output}: No space left on device"


@pytest.mark.slow
@pytest.mark.parametrize("missing", [8 << 10, 40 << 10, 80 << 10])
def test_disk_full_at_the_end(
    missing: int,
    exported: Exported,
    pair: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with small_disk(tmp_path / "disk", exported.report["size"] - missing) as disk:
        export = ExportCommand(capsys, disk)
        line = export.refusal(pair[1], pair[3], *SMALL)
        assert line == f"cannot write {export.output}: No space left on device"


@pytest.mark.slow
def test_file_size_limit(
    pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    export = ExportCommand(capsys, tmp_path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 10, hard))
    try:
        line = export.refusal(pair[1], pair[3], *SMALL)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert line == f"cannot write {export.output}: File too large"


@pytest.mark.slow
@pytest.mark.parametrize(
    "step", ["read checkpoints", "capture target", "pass fuse_acceptance", "build onnxruntime"]
)
def test_interrupt(step: str, pair: list[str], tmp_path: Path) -> None:
    arguments = [*pair, *SMALL, "-v", "-o", str(tmp_path / "new" / "bundle")]
    command = [sys.executable, "-m", "spec_compile.cli", "export", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if step in line:
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read().splitlines()
    assert process.returncode == 130
    assert rest[-1] == "spec-compile: interrupted"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_termination_leaves_nothing(pair: list[str], tmp_path: Path) -> None:
    arguments = [*pair, *SMALL, "-v", "-o", str(tmp_path / "new" / "bundle")]
    command = [sys.executable, "-m", "spec_compile.cli", "export", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if "build onnxruntime" in line)
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
    assert process.returncode == 143
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_summary_is_one_line_on_stdout(
    pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export = ExportCommand(capsys, tmp_path)
    code, out, err = export.run(pair[1], pair[3], *SMALL, "--fusion", "step", "--verify-each")
    assert (code, err) == (0, "")
    assert out.startswith(f"wrote {export.output}: ") and out.count("\n") == 1
    assert load(export.output).generate("ab", max_new_tokens=3).token_ids
