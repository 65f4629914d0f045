"""More requests than one replica should have bring another one."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.ray_serve.conftest import StartCluster

pytestmark = pytest.mark.slow
_PATIENCE = 180.0  # seconds; Serve looks back 30 of them before it adds a replica


def read_until(enough: threading.Event, url: str) -> int:
    """Stream an answer without end until told to leave; return the lines read."""
    endless = {"prompt": "ab", "max_tokens": 59_000, "ignore_eos": True, "stream": True}
    num_lines = 0
    with httpx.stream("POST", url, json=endless, timeout=_PATIENCE) as response:
        for _ in response.iter_lines():
            num_lines += 1
            if enough.is_set():
                break
    return num_lines


def test_load_brings_a_second_replica(start_cluster: StartCluster) -> None:
    enough = threading.Event()
    with start_cluster("min_replicas=1", "max_replicas=2") as cluster:
        assert len(cluster.replicas()) == 1
        deadline = time.monotonic() + _PATIENCE
        with ThreadPoolExecutor(6) as pool:  # a replica's target is its two rows
            url = f"{cluster.url}/v1/completions"
            clients = [pool.submit(read_until, enough, url) for _ in range(6)]
            while len(cluster.replicas()) < 2 and time.monotonic() < deadline:
                httpx.get(f"{cluster.url}/health", timeout=_PATIENCE)
            num_replicas = len(cluster.replicas())
            enough.set()
            assert sum(client.result() > 0 for client in clients) == 6
        assert num_replicas == 2
