"""A real server process under small loads, and what the soak would notice."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from benchmarks.service.process import MODEL, ServerError, ServerProcess
from benchmarks.service.soak import Plan, Tally, soak
from benchmarks.service.stream import Outcome
from benchmarks.service.traffic import Request, random_requests
from spec_compile.runtime.api import load

ROOT = Path(__file__).parents[2]
SHORT = Plan(
    streams=12, seconds=60, most_requests=48, distinct=12, max_tokens=12, slots=3, num_threads=1
)


def test_a_short_soak(demo_verify_bundle: Path) -> None:
    report = soak(demo_verify_bundle, SHORT)
    assert report.passed, report.data()
    counts = report.tally.counts
    assert counts["sent"] == 48
    assert counts["finished"] + counts["left"] == 48
    assert counts["left"] > 0
    assert report.tally.num_tokens > 0
    assert report.memory


def test_what_a_soak_notices(demo_verify_bundle: Path) -> None:
    decoder = load(demo_verify_bundle, num_threads=1)
    requests = [
        replace(one, options={**one.options, "temperature": 0.0})
        for one in random_requests(decoder, 6, max_tokens=6, seed=1)
    ]
    request = requests[0]
    right = Outcome(request.text, request.finish_reason, request.num_tokens)

    def judged(outcome: Outcome) -> Tally:
        tally = Tally()
        tally.add(0, request, outcome)
        tally.judge(decoder, requests)
        return tally

    assert not judged(right).wrong
    assert not judged(Outcome(request.text[:1], left=True)).wrong
    assert judged(replace(right, text="of another")).wrong
    assert judged(Outcome("of another", left=True)).wrong
    assert judged(replace(right, finish_reason=None)).lost
    assert judged(replace(right, error="500: oops")).lost == ["500: oops"]


def test_killed_and_started_again(demo_verify_bundle: Path) -> None:
    """Nothing of a server that was killed stands in the way of the next."""

    def ask(server: ServerProcess) -> str:
        body = {"model": MODEL, "prompt": "def fib", "max_tokens": 8, "seed": 3}
        answer = httpx.post(f"{server.url}/completions", json=body, timeout=60)
        return str(answer.json()["choices"][0]["text"])

    arguments = ["--num-threads", "1"]
    with ServerProcess(demo_verify_bundle, arguments) as server:
        first = ask(server)
        assert server.kill() != 0
    with ServerProcess(demo_verify_bundle, arguments) as server:
        assert ask(server) == first
        assert server.stop() == 0


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"manifest\.json"):
        ServerProcess(tmp_path)


def test_load_through_openai_s_client(demo_verify_bundle: Path) -> None:
    pytest.importorskip("openai")
    command = [sys.executable, str(ROOT / "benchmarks" / "serve_load.py"), str(demo_verify_bundle)]
    command += ["--streams", "1", "3", "--requests", "4", "--max-tokens", "5"]
    done = subprocess.run(
        [*command, "--num-threads", "1"], capture_output=True, text=True, check=True
    )
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")][2:]
    assert [(row[0], row[1]) for row in rows] == [
        ("| 1", "on"),
        ("| 1", "off"),
        ("| 3", "on"),
        ("| 3", "off"),
    ]
    assert all(float(row[2].replace(",", "")) > 0 for row in rows)


def test_requests_say_the_same_to_server_and_decoder(demo_verify_bundle: Path) -> None:
    decoder = load(demo_verify_bundle, num_threads=1)
    one, other = (random_requests(decoder, 3, max_tokens=4, seed=2) for _ in range(2))
    assert one == other
    body = Request("a", {"max_new_tokens": 3, "seed": 1}, "", 0, "length").body
    assert body["max_tokens"] == 3 and "max_new_tokens" not in body
