"""A real server process under requests that nobody should send."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from spec_compile.runtime.api import Decoder
from spec_compile.serving.protocol import Requests
from spec_compile.serving.settings import ServerSettings
from tests.helpers.raw_http import connect, error_in, exchange, request, status_of
from tests.helpers.server_process import ServerProcess
from tests.serving.conftest import MODEL

PROMPT = "bcabcabcaab"
TEXT: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "max_tokens": 20, "seed": 3}
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "a"}]}
JSON = {"Content-Type": "application/json"}
LAST = "Connection: close"
VALUES: tuple[Any, ...] = (
    *(True, 0, -1, 10**40, -(10**40), 1e308, -0.0, 2.0, 1e-320, 0.5),
    *("", "a\x00b", "\ud800", "\udfff x", "é" * 300, "x" * 5000),
    *([], [[]], {}, [None], [True], [1e308], ["\ud800"], [{}], [[1], ["a"]], {"a": {}}),
    *([{"role": "user", "content": "\ud800"}], [{"role": "user", "content": "a\x00"}]),
    *([{"role": "user", "content": [{"type": "text", "text": "a", "cache": 1}]}], [[[[[[]]]]]]),
)


@pytest.fixture(scope="module")
def server(plain: Decoder) -> Iterator[ServerProcess]:
    options = ("--slots", "2", "--model-name", MODEL, "--body-seconds", "5")
    with ServerProcess(plain.bundle.folder, *options) as process:
        yield process
        with process.client() as client:
            assert client.get("/health").json() == {"status": "ok"}
            assert client.post("/v1/completions", json=TEXT).status_code == 200
            assert 'status="500"' not in client.get("/metrics").text
    assert "Traceback" not in process.log


@pytest.fixture
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
CHUNKED += b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "sent,status",
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"\x00" * 50 + b"\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\n\r\n", 400),
        (b"GET  /health  HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /health\xff HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nA\x00: b\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nA: b\x00c\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (request(b"{}").replace(b"Length: 2", b"Length: -2"), 400),
        (request(b"{}").replace(b"Length: 2", b"Length: 2e1"), 400),
        (request(b"{}").replace(b"Length: 2", b"Length: 9" + b"0" * 17), 413),
        (request(b"{}").replace(b"Length: 2", b"Length: " + b"9" * 5000), 400),
        (CHUNKED.replace(b"chunked", b"gzip"), 501),
        (CHUNKED + b"zz\r\n{}\r\n", 400),
        (CHUNKED + b"-1\r\n{}\r\n", 400),
        (CHUNKED + b"f" * 30 + b"\r\n{}\r\n", 400),
        (CHUNKED + b"2\r\n{}abc", 400),
        (b"GET /" + b"a" * 300_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 300_000 + b"\r\n\r\n", 431),
        (b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 60_000 + b"\r\n", 431),
    ],
)
def test_what_is_no_http(server: ServerProcess, sent: bytes, status: int) -> None:
    answer = exchange(server.address, sent)
    assert status_of(answer) == status
    assert error_in(answer)["type"] == "invalid_request_error"


def test_many_headers_are_only_headers(server: ServerProcess) -> None:
    headers = [f"A{number}: b" for number in range(3000)]
    answer = exchange(server.address, request(json.dumps(TEXT).encode(), LAST, *headers))
    assert status_of(answer) == 200


@pytest.mark.parametrize(
    "target", ["*", "//", "/..", "/%00", "/%ff%fe", "/v1/%2e%2e/health", "/none?" + "a=" * 9999]
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "BREW", "CONNECT"])
def test_odd_addresses(server: ServerProcess, method: str, target: str) -> None:
    head = f"{method} {target} HTTP/1.1\r\nHost: x\r\n{LAST}\r\n\r\n"
    answer = exchange(server.address, head.encode())
    assert status_of(answer) in (404, 405)
    error_in(answer)


@pytest.mark.parametrize(
    "body",
    [
        b"\x00",
        b"\xff\xfe{\x00}\x00",
        b"\xef\xbb\xbf{}",
        b'{"prompt": "\xed\xa0\x80"}',
        b'{"prompt": "\xc0\x80"}',
        b'{"prompt": "a\x00"}',
        b'{"seed": NaN}',
        b'{"seed": -Infinity}',
        b'{"seed": 1e999}',
        b'{"seed": ' + b"9" * 100_000 + b"}",
        b'{"seed": 0x10}',
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"model": "toy", "model": [1]}',
        b'{"prompt": "a"} x',
        b"{" + b'"a": 1, ' * 50_000 + b'"b": 1}',
        b'{"' + b"a" * 500_000 + b'": 1}',
    ],
)
def test_bodies_that_mean_harm(client: httpx.Client, body: bytes) -> None:
    for path in ("/v1/completions", "/v1/chat/completions"):
        answer = client.post(path, content=body, headers=JSON)
        assert answer.status_code == 400, answer.text
        assert len(answer.content) < 1000
        error_in(b"\r\n\r\n" + answer.content)


def test_any_value_in_any_field(client: httpx.Client, plain: Decoder) -> None:
    requests = Requests(ServerSettings(MODEL), plain.manifest)
    statuses = set()
    for path, good, fields in (
        ("/v1/completions", TEXT, requests.completion.fields),
        ("/v1/chat/completions", CHAT, requests.chat.fields),
    ):
        for name in [*fields, "unheard_of", "\ud800", "\x00"]:
            for value in VALUES:
                body = json.dumps({**good, "max_tokens": 2, name: value})
                answer = client.post(path, content=body, headers=JSON)
                statuses.add(answer.status_code)
                assert answer.status_code in (200, 400, 404), (name, value, answer.text)
    assert statuses == {200, 400, 404}


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "json"]
)
def test_other_kinds_of_bodies(client: httpx.Client, kind: str) -> None:
    content = json.dumps(TEXT)
    answer = client.post("/v1/completions", content=content, headers={"Content-Type": kind})
    assert answer.status_code == 415
    assert error_in(b"\r\n\r\n" + answer.content)["code"] == "unsupported_media_type"
    kind = "Application/JSON; charset=utf-8"
    answer = client.post("/v1/completions", content=content, headers={"Content-Type": kind})
    assert answer.status_code == 200


def test_a_refused_method_says_which_are_taken(client: httpx.Client) -> None:
    assert client.put("/v1/completions").headers["allow"] == "POST"
    assert set(client.post("/health").headers["allow"].split(", ")) == {"GET", "HEAD"}
    assert client.get("/v1/completions/").status_code == 404


def test_huge_bodies_are_answered(client: httpx.Client) -> None:
    body = json.dumps({**TEXT, "prompt": "a" * 3_000_000}).encode()
    assert client.post("/v1/completions", content=body, headers=JSON).status_code == 413
    parts = (body[place : place + 10_000] for place in range(0, len(body), 10_000))
    assert client.post("/v1/completions", content=parts, headers=JSON).status_code == 413


def test_a_huge_body_without_end(server: ServerProcess) -> None:
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    answer = exchange(server.address, CHUNKED + chunk * 2000)
    assert answer == b"" or status_of(answer) == 413  # the rest of 125 MiB is not read


def test_a_body_is_not_asked_for_when_it_is_too_large(server: ServerProcess) -> None:
    head = request(b"{}", "Expect: 100-continue").replace(b"Length: 2", b"Length: 2000000")
    answer = exchange(server.address, head.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
    assert status_of(answer) == 413


def test_others_are_served_as_ever(server: ServerProcess, plain: Decoder) -> None:
    """While some misbehave, answers are those of runs alone, and show in no error."""
    wanted = {
        seed: plain.generate(PROMPT, seed=seed, temperature=1.0, max_new_tokens=20).text
        for seed in range(4)
    }
    bad = [
        request(b'{"model": "toy", "prompt": 3}', LAST),
        request(b"\xff" * 1000, LAST),
        CHUNKED + b"zz\r\n",
        b"GET /v1/models/\xff HTTP/1.1\r\n\r\n",
        request(json.dumps({**TEXT, "prompt": "a" * 200}).encode(), LAST),
    ]

    def misbehave(number: int) -> bytes:
        if number % 6 < len(bad):
            return exchange(server.address, bad[number % 6])
        with connect(server.address) as leaving:
            leaving.sendall(request(json.dumps({**TEXT, "stream": True}).encode()))
            return leaving.recv(100)

    def behave(number: int) -> tuple[int, str]:
        body = {**TEXT, "seed": number % 4}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
        return number % 4, answer.json()["choices"][0]["text"]

    with ThreadPoolExecutor(8) as pool:
        harmed = [pool.submit(misbehave, number) for number in range(60)]
        served = [pool.submit(behave, number) for number in range(40)]
        for seed, text in (one.result() for one in served):
            assert text == wanted[seed]
        for answer in (one.result() for one in harmed):
            assert PROMPT.encode() not in answer
            assert b"Traceback" not in answer
