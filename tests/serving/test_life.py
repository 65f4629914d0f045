"""A server under way: limits, clients that leave, engine errors, metrics, logs, shutdown."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from spec_compile.errors import ConfigError
from spec_compile.runtime.api import Decoder
from spec_compile.runtime.async_decoder import AsyncDecoder
from spec_compile.runtime.shared_decoder import SharedDecoder
from spec_compile.serving.app import create_app
from spec_compile.serving.log import ACCESS, JsonFormatter
from spec_compile.serving.settings import ServerSettings
from tests.serving.conftest import MODEL, Running, StartServer
from tests.serving.test_refusals import error_of

LONG: dict[str, Any] = {
    "model": MODEL,
    "prompt": "ab",
    "max_tokens": 60,
    "ignore_eos": True,
    "seed": 1,
}


def post(running: Running, **change: Any) -> httpx.Response:
    return running.client.post("/v1/completions", json={**LONG, **change})


def test_a_full_queue(start: StartServer) -> None:
    running = start(num_slots=1, max_queue=1)
    running.engine.close()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(post, running)
        running.engine.wait_for_call()
        second = pool.submit(post, running, n=1)
        while running.shared.scheduler.snapshot().waiting == 0:
            os.sched_yield()
        answer = post(running)
        assert error_of(answer, 429)["code"] == "queue_full"
        assert answer.headers["retry-after"] == "1"
        running.engine.open()
        assert first.result().json()["choices"] == second.result().json()["choices"]


def test_too_many_open_requests(start: StartServer) -> None:
    running = start(max_concurrency=1)
    running.engine.close()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(post, running)
        running.engine.wait_for_call()
        assert error_of(post(running), 429)["code"] == "busy"
        assert running.client.get("/health").status_code == 200
        running.engine.open()
        assert first.result().status_code == 200


def test_a_request_that_takes_too_long(start: StartServer) -> None:
    running = start(request_seconds=1e-6)
    assert error_of(post(running), 504)["code"] == "timeout"
    with running.client.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert json.loads(lines[-2].removeprefix("data: "))["error"]["code"] == "timeout"
    assert lines[-1] == "data: [DONE]"


@pytest.mark.parametrize("more", [b"", b"G"], ids=["", "pipelined"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slot(start: StartServer, stream: bool, more: bytes) -> None:
    running = start(num_slots=1)
    running.engine.close()
    host, port = running.server.address
    body = json.dumps({**LONG, "stream": stream}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    head += "Content-Type: application/json\r\n\r\n"
    with socket.create_connection((host, port)) as leaving:
        leaving.sendall(head.encode() + body + more)
        running.engine.wait_for_call()
    while not any(t.row.finished for t in running.shared.scheduler._seated()):
        os.sched_yield()  # the server notices while the engine stands still
    running.engine.open()
    assert post(running).status_code == 200
    assert running.shared.scheduler.snapshot().finished["cancelled"] == 1


def test_an_engine_error_tells_no_more_than_it_must(running: Running) -> None:
    running.engine.fails_at = 0.5
    error = error_of(post(running, temperature=0.5), 500)
    assert error["message"] == "the engine failed"
    body = {**LONG, "temperature": 0.5, "stream": True}
    with running.client.stream("POST", "/v1/completions", json=body) as answer:
        assert "the engine failed" in answer.read().decode()
    assert post(running, temperature=1.0).status_code == 200


def test_an_engine_error_leaves_the_others_alone(start: StartServer) -> None:
    """Rows of a failing call are run again one by one: those that fail again end, others go on."""
    running = start(num_slots=3)
    wanted = running.plain.generate(
        "ab", seed=1, temperature=1.0, max_new_tokens=60, ignore_eos=True
    )
    running.engine.close()
    with ThreadPoolExecutor(3) as pool:
        good = [pool.submit(post, running) for _ in range(2)]
        running.engine.wait_for_call()
        bad = pool.submit(post, running, temperature=0.5)
        while running.shared.scheduler.snapshot().waiting < 1:
            os.sched_yield()
        running.engine.fails_at = 0.5
        running.engine.open()
        error_of(bad.result(), 500)
        for answer in (one.result() for one in good):
            assert answer.json()["choices"][0]["text"] == wanted.text


def test_health_tells_one_bad_request_from_a_broken_engine(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    def health(path: str = "/health") -> tuple[int, str]:
        answer = running.client.get(path)
        return answer.status_code, answer.json()["status"]

    running.engine.fails_at = 0.5
    error_of(post(running, temperature=0.5), 500)
    assert "the engine failed: no run at 0.5" in caplog.text
    assert health() == (200, "ok")
    running.engine.fails_at = 0.0  # the probe's own temperature
    error_of(post(running, temperature=0.0), 500)
    for _ in range(2):
        assert health() == health("/health/ready") == (503, "engine failing")
        assert health("/health/live") == (200, "ok")
    assert post(running, temperature=1.0).status_code == 200
    assert health() == (200, "ok")
    error_of(post(running, temperature=0.0), 500)
    assert health() == (503, "engine failing")
    running.engine.fails_at = None
    assert health() == (200, "ok")


def test_a_worker_that_stopped_is_not_healthy(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    running.engine.on_call = lambda: 1 // 0
    error_of(post(running), 503)
    running.shared.scheduler._worker.join(20)
    for path in ("/health", "/health/live", "/health/ready"):
        assert running.client.get(path).status_code == 503


def test_a_fault_of_our_own_is_not_shown(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(running.shared, "prepare", fail)
    answer = post(running)
    assert "secret" not in answer.text
    assert "log" in error_of(answer, 500)["message"]
    assert "secret detail" in caplog.text


def test_metrics(running: Running) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    post(running)
    post(running, prompt="")
    text = running.client.get("/metrics").text
    families = {one.name: one for one in parser.text_string_to_metric_families(text)}
    samples = {
        (s.name, s.labels.get("position", "")): s.value
        for f in families.values()
        for s in f.samples
    }
    wanted = running.plain.generate(
        "ab", seed=1, temperature=1.0, max_new_tokens=60, ignore_eos=True
    ).stats
    warm = running.plain.generate([0], max_new_tokens=1).stats
    drafted = wanted.num_draft_tokens + warm.num_draft_tokens
    assert samples["vllm:spec_decode_num_draft_tokens_total", ""] == drafted
    assert samples["vllm:generation_tokens_total", ""] == 61
    assert samples["vllm:prompt_tokens_total", ""] == 3
    accepted = samples["vllm:spec_decode_num_accepted_tokens_total", ""]
    per_place = [
        samples["vllm:spec_decode_num_accepted_tokens_per_pos_total", str(place)]
        for place in range(3)
    ]
    assert accepted == sum(per_place) == wanted.num_accepted_tokens + warm.num_accepted_tokens
    assert samples["vllm:num_requests_running", ""] == 0
    assert samples["spec_compile:slots", ""] == 2
    assert samples["vllm:time_to_first_token_seconds_count", ""] == 1
    answers = {s.labels["status"]: s.value for s in families["spec_compile:http_responses"].samples}
    assert answers == {"200": 1, "400": 1}


def test_logs_are_json_without_text(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger=ACCESS.name):
        post(running, prompt="bcabcabca")
        running.client.get("/health")
        records: list[logging.LogRecord] = []
        while len(records) < 2:  # the last line comes after the answer
            os.sched_yield()
            records = [r for r in caplog.records if r.name == ACCESS.name]
    lines = [json.loads(JsonFormatter().format(r)) for r in records]
    assert (lines[0]["path"], lines[0]["status"]) == ("/v1/completions", 200)
    assert (lines[0]["prompt_tokens"], lines[0]["completion_tokens"]) == (9, 60)
    assert "bcabca" not in caplog.text


def test_a_bundle_without_tokenizer(plain: Decoder) -> None:
    shared = SharedDecoder(plain.bundle, plain.engine, None)
    with shared, pytest.raises(ConfigError, match="needs a tokenizer"):
        create_app(AsyncDecoder(shared), ServerSettings(MODEL))


def test_shutdown_finishes_streams(start: StartServer) -> None:
    running = start(num_slots=1)
    running.engine.close()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(post, running)
        running.engine.wait_for_call()
        running.server.handle_exit(signal.SIGTERM, None)
        running.engine.open()
        assert len(answer.result().json()["choices"][0]["text"]) > 0
        assert answer.result().json()["usage"]["completion_tokens"] == 60


def test_the_command_ends_in_order_on_sigterm(plain: Decoder) -> None:
    command = [sys.executable, "-m", "spec_compile.cli", "serve", str(plain.bundle.folder)]
    process = subprocess.Popen(
        [*command, "--port", "0", "--num-threads", "1"], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        port = ""
        for line in process.stderr:
            if found := re.search(r'"message": "listening".*"port": (\d+)', line):
                port = found.group(1)
                break
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, timeout=30) as client:
            body = {**LONG, "max_tokens": 90, "stream": True}
            with client.stream("POST", "/v1/completions", json=body) as answer:
                lines = answer.iter_lines()
                next(lines)
                process.send_signal(signal.SIGTERM)
                assert [line for line in lines if line][-1] == "data: [DONE]"
        log = process.stderr.read()
        assert process.wait(30) == 0
        assert "Traceback" not in log
        assert all(json.loads(line) for line in log.splitlines())
    finally:
        process.kill()
        process.wait()
