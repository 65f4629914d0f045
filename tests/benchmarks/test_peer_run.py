"""The comparison's own command, bundles, prompts and conversions, without any peer installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers import conversion
from benchmarks.peers.bundles import BundleError, parse_bundle
from benchmarks.peers.catalog import MARK, PEERS, ROOT
from benchmarks.peers.prompts import (
    DEFAULT_FILE,
    KINDS,
    Prompt,
    PromptError,
    choose,
    encode,
    read_prompts,
)
from benchmarks.peers.worker import NotAvailable
from spec_compile.presets import PRESETS


def run_script(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = str(ROOT / "benchmarks" / "peers" / name)
    return subprocess.run(
        [sys.executable, script, *arguments], capture_output=True, text=True, check=False
    )


def write_manifest(folder: Path, config: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps({"config": config}), encoding="utf-8")
    return folder


def test_a_bundle_is_measured_beside_peers_that_are_not_there(
    demo_verify_bundle: Path, tmp_path: Path
) -> None:
    prompts, found = tmp_path / "prompts.json", tmp_path / "found.json"
    text = "def add(a, b):\n    return"
    prompts.write_text(json.dumps([{"kind": "code", "text": text}]), encoding="utf-8")
    done = run_script(
        "run.py",
        *("--target", str(PRESETS["llama"]), "--draft", str(PRESETS["small"])),
        *("--bundle", f"float32={demo_verify_bundle}", "--envs", str(tmp_path / "envs")),
        *("--peers", "spec-compile", "ort-genai", "--precision", "float32", "int8"),
        *("--prompts", str(prompts), "--json", str(found), "--threads", "1"),
        *("--max-new-tokens", "12", "--repeat", "2", "--warm-up", "0", "--call-repeat", "2"),
    )
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    assert sum("not available: no environment" in row for row in rows) == 4
    assert sum("not available: no bundle given" in row for row in rows) == 2
    assert any("not available: no --self-bundle given" in row for row in rows)
    report = json.loads(found.read_text(encoding="utf-8"))
    ours = report["outcomes"][0]
    speculative = [one for one in ours["outputs"] if one["mode"] == "speculative"]
    plain = [one for one in ours["outputs"] if one["mode"] == "plain" and one["asked"] == 12]
    assert len(speculative) == len(plain) == 2
    assert speculative[0]["tokens"] == plain[0]["tokens"]
    assert len(ours["calls"]["5"]) == 2


def test_an_unusable_bundle_argument_ends_with_one_line(tmp_path: Path) -> None:
    done = run_script(
        "run.py",
        *("--target", str(PRESETS["llama"]), "--envs", str(tmp_path)),
        *("--bundle", f"float32={tmp_path}"),
    )
    assert done.returncode == 1
    assert done.stderr.strip().count("\n") == 0 and "is no bundle" in done.stderr


@pytest.mark.parametrize(
    "name, config",
    [
        ("float32", {"dtype": "float32"}),
        ("int8", {"dtype": "float32", "quantize": "int8"}),
        ("int4-lookup", {"quantize": {"target": "int4", "draft": "int4"}}),
    ],
)
def test_a_bundle_goes_by_the_precision_of_its_name(
    name: str, config: object, tmp_path: Path
) -> None:
    bundle = parse_bundle(f"{name}={write_manifest(tmp_path, config)}")
    assert bundle.name == name and name.startswith(bundle.precision)
    assert bundle.folder == tmp_path


@pytest.mark.parametrize(
    "name, config",
    [
        ("float32", {"quantize": "int8"}),
        ("int8", {"dtype": "float32"}),
        ("int4", {"quantize": {"target": "int4", "draft": "int8"}}),
        ("best", {"dtype": "float32"}),
    ],
)
def test_a_bundle_in_another_precisions_row_is_refused(
    name: str, config: object, tmp_path: Path
) -> None:
    with pytest.raises(BundleError):
        parse_bundle(f"{name}={write_manifest(tmp_path, config)}")


def test_the_shipped_prompts_are_three_of_each_kind() -> None:
    prompts = read_prompts(DEFAULT_FILE)
    assert [sum(one.kind == kind for one in prompts) for kind in KINDS] == [3] * 4
    assert len({one.text for one in prompts}) == 12
    assert [one.kind for one in choose(prompts, 5)] == [*KINDS, KINDS[0]]
    assert sorted(choose(prompts, None), key=str) == sorted(prompts, key=str)


@pytest.mark.parametrize("text", ["", "{}", "[]", '[{"kind": "code"}]', '[{"kind":"x","text":""}]'])
def test_a_prompt_file_of_another_form_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(PromptError):
        read_prompts(file)


def test_a_chat_prompt_needs_a_template() -> None:
    assert encode([Prompt("prose", "It rained.")], PRESETS["llama"])[0]
    with pytest.raises(PromptError, match="chat template"):
        encode([Prompt("chat", "Hello?")], PRESETS["llama"])


def test_a_checkpoint_is_converted_once_and_again_when_it_changes(tmp_path: Path) -> None:
    checkpoint, made = tmp_path / "model", []
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text("{}", encoding="utf-8")

    def convert(folder: Path) -> None:
        made.append(folder)
        (folder / "weights").touch()

    first = conversion.converted(tmp_path, checkpoint, "kind", convert)
    assert conversion.converted(tmp_path, checkpoint, "kind", convert) == first
    (checkpoint / "model.safetensors").write_bytes(b"other weights")
    assert conversion.converted(tmp_path, checkpoint, "kind", convert) != first
    assert len(made) == 2 and (first / "weights").is_file()


def test_a_conversion_that_fails_leaves_nothing_and_tells_its_last_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")

    def convert(_: Path) -> None:
        conversion.run_quietly([sys.executable, "-c", "raise SystemExit('no such op')"])

    kept = tmp_path / "kept"
    with pytest.raises(NotAvailable, match="conversion failed: no such op"):
        conversion.converted(kept, tmp_path, "kind", convert)
    assert [path for path in kept.rglob("*") if path.is_file()] == []
    with pytest.raises(NotAvailable, match=r"no config\.json"):
        conversion.fingerprint(kept)


def test_setup_leaves_what_is_complete_and_refuses_what_is_not(tmp_path: Path) -> None:
    complete, half = tmp_path / "ov-genai", tmp_path / "ort-genai"
    complete.mkdir()
    half.mkdir()
    (complete / MARK).touch()
    done = run_script("setup.py", "--envs", str(tmp_path), "ov-genai", "ort-genai")
    assert done.returncode == 1
    assert "is there already" in done.stdout and "ov-genai" in done.stdout
    assert "ort-genai: not made" in done.stderr and "remove it first" in done.stderr


def test_setup_refuses_a_peer_without_an_environment(tmp_path: Path) -> None:
    done = run_script("setup.py", "--envs", str(tmp_path), "transformers")
    assert done.returncode == 2 and "no environment for 'transformers'" in done.stderr


def test_every_environment_is_pinned() -> None:
    for name, entry in PEERS.items():
        assert (entry.environment is None) == (not entry.packages), name
        assert all("==" in package for package in entry.packages), name
