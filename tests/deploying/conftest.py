"""A real Triton Inference Server, from the wheel of nvidia-pytriton, in its own environment."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.environments import ROOT, environment, pins, site_packages

_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
# Its Python backend was built before NumPy 2.
_PYTRITON = ["--no-deps", "nvidia-pytriton==0.7.0"]
_PACKAGES = ["numpy<2", "tritonclient[grpc]==2.73.0", *pins("onnxruntime", "tokenizers", "jinja2")]


@dataclass(frozen=True)
class Triton:
    """A running server: its addresses, and the environment of its client."""

    http: str
    grpc: str
    python: Path

    def ask(self, model: str, *requests: dict[str, Any]) -> list[dict[str, Any]]:
        """Send requests side by side and return what `triton_client` reports of each."""
        script = ROOT / "tests" / "helpers" / "triton_client.py"
        command = [str(self.python), str(script), self.grpc, model]
        text = json.dumps(requests)
        done = subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True)
        answers: list[dict[str, Any]] = json.loads(done.stdout)
        return answers


StartTriton = Callable[..., AbstractContextManager[Triton]]


class ServerEndedError(Exception):
    """A server ended before it was ready; the message is its log."""


@pytest.fixture(scope="session")
def triton_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        ctypes.CDLL(f"libpython{_PYTHON}.so.1.0")
    except OSError:
        pytest.skip(f"Triton's Python backend needs libpython{_PYTHON}.so")
    scratch = tmp_path_factory.mktemp("environments")
    return environment("triton", [_PYTRITON, _PACKAGES], scratch)


@pytest.fixture(scope="session")
def triton_home(triton_environment: Path) -> Path:
    """The server's folder, with the Python backend's process for this version of Python."""
    home = site_packages(triton_environment) / "pytriton" / "tritonserver"
    stub = home / "python_backend_stubs" / _PYTHON / "triton_python_backend_stub"
    if not stub.exists():
        pytest.skip(f"the wheel has no Python backend for Python {_PYTHON}")
    shutil.copy(stub, home / "backends" / "python")
    (home / "bin" / "tritonserver").chmod(0o755)
    return home


@pytest.fixture(scope="session")
def start_triton(triton_environment: Path, triton_home: Path) -> StartTriton:
    """`with start_triton(repository) as server`; `python`: the environment of the model."""

    @contextlib.contextmanager
    def start(repository: Path, python: Path = triton_environment) -> Iterator[Triton]:
        http, grpc = free_port(), free_port()
        command = [str(triton_home / "bin" / "tritonserver"), f"--model-repository={repository}"]
        command += [f"--backend-directory={triton_home / 'backends'}", "--allow-metrics=false"]
        command += [f"--http-port={http}", f"--grpc-port={grpc}", "--exit-timeout-secs=30"]
        command += ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1"]
        # The backend's Python takes its packages from the active environment.
        active = {**os.environ, "PATH": f"{python / 'bin'}:{os.environ['PATH']}"}
        with subprocess.Popen(
            command,
            env=active,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            try:
                _await_ready(process)
                client = triton_environment / "bin" / "python"
                yield Triton(f"http://127.0.0.1:{http}", f"127.0.0.1:{grpc}", client)
            finally:
                process.terminate()
                try:
                    process.communicate(timeout=60)
                except subprocess.TimeoutExpired:  # requests that do not end
                    process.kill()
                    process.communicate()

    return start


def _await_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    log: list[str] = []
    for line in process.stdout:
        log.append(line)
        if "Started HTTPService" in line:
            return
    raise ServerEndedError("".join(log))


def free_port() -> int:
    """A port on loopback that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
