"""examples/ray_serve on a real local Ray, in an environment of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from spec_compile.runtime.api import Decoder, load
from tests.helpers.environments import ROOT, environment
from tests.helpers.toy_bundle import Toy, write_toy_bundle

_CONSTRAINTS = ["-c", str(ROOT / "constraints.txt")]
_PACKAGES = ["ray[serve]==2.60.0", "onnxruntime", "tokenizers", "jinja2", *_CONSTRAINTS]
# Of two replicas two rows each; an output that fills it takes longer than any test waits.
TOY = Toy(max_length=60_000, batch_size=2)


@dataclass(frozen=True)
class Cluster:
    """A deployment: where it listens, and the process that started its Ray."""

    url: str
    process: psutil.Process

    def replicas(self) -> list[psutil.Process]:
        """The processes of the engine's replicas."""
        return [one for one in self.process.children(recursive=True) if _is_replica(one)]


StartCluster = Callable[..., AbstractContextManager[Cluster]]


def _is_replica(process: psutil.Process) -> bool:
    try:
        title = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return title.startswith("ray::ServeReplica:") and "Engine" in title


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_bundle(TOY, tmp_path_factory.mktemp("ray") / "toy")


@pytest.fixture(scope="session")
def plain(bundle: Path) -> Decoder:
    return load(bundle, num_threads=1)


@pytest.fixture(scope="session")
def start_cluster(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> StartCluster:
    """`with start_cluster("name=value") as cluster`: a Ray of its own with these arguments."""
    folder = environment("ray", [_PACKAGES], tmp_path_factory.mktemp("environments"))
    script = ROOT / "tests" / "helpers" / "ray_launch.py"
    home = tmp_path_factory.mktemp("home")  # where Ray leaves its token

    @contextlib.contextmanager
    def start(*arguments: str) -> Iterator[Cluster]:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [str(folder / "bin" / "python"), str(script), str(port), f"bundle={bundle}"]
        variables = {**os.environ, "HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0"}
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen([*command, *arguments], env=variables, **pipes) as process:
            assert process.stdin is not None and process.stdout is not None
            if "READY\n" not in iter(process.stdout.readline, ""):
                pytest.fail("Ray Serve did not come up; its log is above")
            yield Cluster(f"http://127.0.0.1:{port}", psutil.Process(process.pid))
            process.stdin.close()

    return start


@pytest.fixture(scope="module")
def cluster(start_cluster: StartCluster) -> Iterator[Cluster]:
    """Two replicas of two rows and four places to wait."""
    with start_cluster("min_replicas=2", "max_replicas=2", "max_queue=4") as running:
        yield running
