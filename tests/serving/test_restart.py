"""A server process that is killed under load leaves nothing in the way of the next one."""

from __future__ import annotations

import json
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from spec_compile.runtime.api import Decoder
from tests.helpers.server_process import ServerProcess
from tests.serving.conftest import MODEL

BODY: dict[str, Any] = {
    "model": MODEL,
    "prompt": "ab",
    "max_tokens": 60,
    "ignore_eos": True,
    "stream": True,
}
STREAMS = 6


def lines_of(url: str, seed: int, first: threading.Semaphore | None = None) -> list[str]:
    """The lines of a stream, up to where it broke off."""
    lines: list[str] = []
    try:
        with httpx.stream("POST", f"{url}/v1/completions", json={**BODY, "seed": seed}) as answer:
            for line in answer.iter_lines():
                if line:
                    lines.append(line)
                if first is not None and len(lines) == 1:
                    first.release()
    except httpx.TransportError as error:
        lines.append(f"broken: {type(error).__name__}")
    return lines


def load_until_broken(url: str, seed: int, first: threading.Semaphore) -> list[str]:
    """One stream after the other, until one breaks off; returns that one."""
    while True:
        lines = lines_of(url, seed, first)
        if lines[-1] != "data: [DONE]":
            return lines


def text_in(lines: list[str]) -> str:
    """What the events of a stream say."""
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line[:7] == "data: {"]
    return "".join(event["choices"][0]["text"] for event in events)


def test_kill_under_load_and_restart_on_the_same_port(plain: Decoder) -> None:
    wanted = [
        plain.generate("ab", seed=s, temperature=1.0, max_new_tokens=60, ignore_eos=True).text or ""
        for s in range(STREAMS)
    ]
    options = ("--slots", "2", "--model-name", MODEL)
    started = threading.Semaphore(0)
    with (
        ServerProcess(plain.bundle.folder, *options) as killed,
        ThreadPoolExecutor(STREAMS) as pool,
    ):
        under_way = [
            pool.submit(load_until_broken, killed.url, seed, started) for seed in range(STREAMS)
        ]
        for _ in range(STREAMS):
            assert started.acquire(timeout=60)
        killed.process.send_signal(signal.SIGKILL)
        assert killed.end() == -signal.SIGKILL
        # Who was cut off can tell: an error of the connection, and never the end of a stream.
        for seed, one in enumerate(under_way):
            broken = one.result()
            assert broken[-1].startswith("broken: ")
            assert wanted[seed].startswith(text_in(broken))
        with ServerProcess(plain.bundle.folder, *options, port=killed.port) as next_one:
            assert next_one.port == killed.port
            answers = list(pool.map(lambda seed: lines_of(next_one.url, seed), range(STREAMS)))
            for seed, lines in enumerate(answers):
                assert lines[-1] == "data: [DONE]"
                assert text_in(lines) == wanted[seed]
            assert next_one.process.poll() is None
            next_one.process.send_signal(signal.SIGTERM)
            assert next_one.end() == 0
    assert "Traceback" not in next_one.log
