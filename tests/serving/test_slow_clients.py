"""Clients that are slow on purpose hold no connection, no row and no memory for ever."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spec_compile.runtime.api import load
from tests.helpers.raw_http import (
    connect,
    error_in,
    exchange,
    read_all,
    request,
    status_of,
)
from tests.helpers.server_process import ServerProcess
from tests.helpers.toy_bundle import Toy, write_toy_bundle
from tests.serving.conftest import MODEL

LENGTH, CHOICES = 3000, 3
BASE: dict[str, Any] = {"model": MODEL, "prompt": "ab", "seed": 1, "ignore_eos": True}
# One token a round, so that a reader who keeps up gets about an event a token.
LONG = {**BASE, "max_tokens": LENGTH, "n": CHOICES, "stream": True, "speculative": False}
SMALL = 4096  # bytes that the system of a slow reader takes in
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    toy = Toy(max_length=LENGTH + 8, batch_size=CHOICES + 1)
    return write_toy_bundle(toy, tmp_path_factory.mktemp("slow") / MODEL)


@pytest.fixture(scope="module")
def impatient(bundle: Path) -> Iterator[ServerProcess]:
    """A server that waits for nobody."""
    waits = ("--head-seconds", "0.3", "--body-seconds", "0.3", "--send-seconds", "0.3")
    with ServerProcess(bundle, *waits, "--idle-seconds", "0.3") as process:
        yield process
    assert "Traceback" not in process.log


def metric(server: ServerProcess, name: str) -> float:
    """A sample of the server's metrics; 0 when there is none yet."""
    with server.client() as client:
        lines = client.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def wait_for(server: ServerProcess, name: str, value: float) -> None:
    """Ask until a metric has a value."""
    found = -1.0
    for _ in range(10_000):
        found = metric(server, name)
        if found == value:
            return
    raise AssertionError(f"{name} is {found}, not {value}")


def test_a_client_that_says_nothing(impatient: ServerProcess) -> None:
    assert exchange(impatient.address, b"") == b""


@pytest.mark.parametrize("sent", [b"G", b"GET /health HTTP/1.1\r\nHost:", HEALTH])
def test_a_head_that_does_not_end(impatient: ServerProcess, sent: bytes) -> None:
    answer = exchange(impatient.address, sent)
    assert status_of(answer) == 408
    assert error_in(answer)["code"] == "timeout"


@pytest.mark.parametrize("first", [b"", HEALTH + b"\r\n"])
def test_a_head_that_comes_in_drop_by_drop(impatient: ServerProcess, first: bytes) -> None:
    """Each byte would be in time; the head is not, be it the first of its connection or not."""
    with connect(impatient.address) as connection:
        connection.sendall(first + HEALTH)
        connection.settimeout(0.05)
        answers = b""
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            while True:
                try:
                    part = connection.recv(65536)
                    answers += part
                    if not part:
                        break
                except TimeoutError:
                    connection.sendall(b"A")
    assert (b" 408 " in answers) or not first
    assert (b" 200 " in answers) == bool(first)


def test_an_idle_connection(impatient: ServerProcess) -> None:
    answer = exchange(impatient.address, HEALTH + b"\r\n")
    assert status_of(answer) == 200


def test_a_body_that_does_not_end(impatient: ServerProcess) -> None:
    answer = exchange(impatient.address, request(b"{}")[:-1])
    assert status_of(answer) == 408
    assert error_in(answer)["code"] == "timeout"


@pytest.mark.parametrize("length", [b"Content-Length: 9", b"Transfer-Encoding: chunked"])
def test_a_body_that_nobody_wants(impatient: ServerProcess, length: bytes) -> None:
    answer = exchange(impatient.address, HEALTH + length + b"\r\n\r\n1")
    assert status_of(answer) == 200


def test_a_reader_that_stands_still_is_left(impatient: ServerProcess) -> None:
    gone = f'spec_compile:http_responses_total{{model_name="{MODEL}",status="499"}}'
    before = metric(impatient, gone)
    with connect(impatient.address, receive_bytes=SMALL) as stalled:
        stalled.sendall(request(json.dumps(LONG).encode()))
        wait_for(impatient, gone, before + 1)
        wait_for(impatient, "vllm:num_requests_running", 0)
        answer = read_all(stalled)
    assert b"[DONE]" not in answer


def test_a_reader_that_pauses_costs_little_and_misses_nothing(bundle: Path) -> None:
    with (
        ServerProcess(bundle) as server,
        server.client() as client,
        connect(server.address, receive_bytes=SMALL) as paused,
    ):
        paused.sendall(request(json.dumps(LONG).encode(), "Connection: close"))
        # Its rows end, and are free, although it has read nothing.
        wait_for(server, "vllm:generation_tokens_total", 1 + CHOICES * LENGTH)
        wait_for(server, "vllm:num_requests_running", 0)
        answer = client.post("/v1/completions", json={**BASE, "max_tokens": 5})
        assert answer.status_code == 200
        events = [
            json.loads(line.removeprefix(b"data: "))
            for line in read_all(paused).splitlines()
            if line.startswith(b"data: {")
        ]
    texts = [""] * CHOICES
    for event in events:
        (choice,) = event["choices"]
        texts[choice["index"]] += choice["text"]
    # What did not fit into the system's buffers waited as tokens, and came as one event.
    assert len(events) < LENGTH
    plain = load(bundle, num_threads=1)
    for index, text in enumerate(texts):
        alone = plain.generate(
            "ab",
            seed=1 + index,
            temperature=1.0,
            max_new_tokens=LENGTH,
            ignore_eos=True,
            speculative=False,
        )
        assert text == alone.text


def test_more_connections_than_allowed(bundle: Path) -> None:
    with ServerProcess(bundle, "--max-connections", "2") as server:
        with connect(server.address) as first, connect(server.address):
            refused = exchange(server.address, b"")
            assert status_of(refused) == 503
            assert error_in(refused)["code"] == "busy"
            first.sendall(HEALTH + b"Connection: close\r\n\r\n")
            assert status_of(read_all(first)) == 200
        asked = HEALTH + b"Connection: close\r\n\r\n"
        answers = (exchange(server.address, asked) for _ in range(1000))
        assert any(b" 200 " in answer for answer in answers)  # there is room again
