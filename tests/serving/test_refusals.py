"""What a server refuses: by name, in OpenAI's shape, without a traceback, whatever comes in."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from spec_compile.errors import ConfigError
from spec_compile.serving.settings import ServerSettings
from tests.serving.conftest import MODEL, Running, StartServer

JSON = {"Content-Type": "application/json"}
TEXT: dict[str, Any] = {"model": MODEL, "prompt": "ab", "max_tokens": 2}
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "a"}]}


def error_of(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The error of an answer, whose shape is OpenAI's."""
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "Traceback" not in answer.text
    assert "\n" not in error["message"]
    return error


@pytest.mark.parametrize(
    "name,value",
    [
        ("logprobs", 1),
        ("echo", True),
        ("best_of", 2),
        ("suffix", "x"),
        ("frequency_penalty", 0.5),
        ("presence_penalty", 1),
        ("logit_bias", {"1": 5}),
        ("beam_width", 3),
        ("messages", []),
    ],
)
def test_fields_that_are_not_served(running: Running, name: str, value: Any) -> None:
    answer = running.client.post("/v1/completions", json={**TEXT, name: value})
    error = error_of(answer, 400)
    assert name in error["message"]
    assert error["param"] == name


def test_fields_that_ask_for_nothing(running: Running) -> None:
    idle: dict[str, Any] = {
        "logprobs": None,
        "echo": False,
        "best_of": 1,
        "frequency_penalty": 0.0,
        "user": "me",
    }
    assert running.client.post("/v1/completions", json={**TEXT, **idle}).status_code == 200
    idle = {"logprobs": False, "tools": [], "response_format": {"type": "text"}, "stop": None}
    answer = running.client.post("/v1/chat/completions", json={**CHAT, **idle, "max_tokens": 2})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "change,param",
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": [[1], []]}, "prompt[1]"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [99]}, "prompt[0]"),
        ({"prompt": [10**30]}, "prompt[0]"),
        ({"prompt": "a" * 200}, None),
        ({"prompt": "\ud800"}, "prompt"),
        ({"prompt": ["a"] * 17}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 2.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 10**9}, "max_tokens"),
        ({"n": 17}, "n"),
        ({"n": 0}, "n"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"seed": [1]}, "seed"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 1e300}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"stop": 3}, "stop"),
        ({"stop": [""]}, "stop[0]"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": "a" * 257}, "stop"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"other": 1}}, "stream_options.other"),
        ({"ignore_eos": "yes"}, "ignore_eos"),
        ({"user": 3}, "user"),
        ({"\ud800": 3}, "\ud800"),
        ({"model": None}, "model"),
    ],
)
def test_bad_values(running: Running, change: dict[str, Any], param: str | None) -> None:
    body = json.dumps({**TEXT, **change})
    error = error_of(running.client.post("/v1/completions", content=body, headers=JSON), 400)
    assert error["param"] == param


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        "a",
        ["a"],
        [{"role": "king", "content": "a"}],
        [{"role": "user"}],
        [{"role": "user", "content": 3}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": "a", "tool_calls": [{}]}],
        [{"role": "user", "content": "a", "name": 3}],
    ],
)
def test_bad_messages(running: Running, messages: Any) -> None:
    answer = running.client.post("/v1/chat/completions", json={**CHAT, "messages": messages})
    assert "messages" in error_of(answer, 400)["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b'"text"',
        b"\xff\xfe{}",
        b'{"model": "\xc3\x28"}',
        b'{"temperature": NaN}',
        b'{"temperature": Infinity}',
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"seed": ' + b"9" * 5000 + b"}",
        b"\x00" * 100,
    ],
)
def test_bodies_that_are_no_json_object(running: Running, body: bytes) -> None:
    for path in ("/v1/completions", "/v1/chat/completions"):
        error_of(running.client.post(path, content=body, headers=JSON), 400)
    assert running.client.get("/health").status_code == 200


def test_huge_bodies(start: StartServer) -> None:
    running = start(max_body_bytes=1000)
    body = json.dumps({**TEXT, "prompt": "a" * 1000}).encode()
    error_of(running.client.post("/v1/completions", content=body, headers=JSON), 413)

    def parts() -> Iterator[bytes]:
        yield from (body[place : place + 100] for place in range(0, len(body), 100))

    error_of(running.client.post("/v1/completions", content=parts(), headers=JSON), 413)
    assert running.client.post("/v1/completions", json=TEXT).status_code == 200


def test_a_body_that_does_not_come(start: StartServer) -> None:
    running = start(body_seconds=0.05)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
    head += b"Content-Type: application/json\r\n\r\n"
    with socket.create_connection(running.server.address) as connection:
        connection.sendall(head + b"{")
        with connection.makefile("rb") as file:
            answer = file.read()  # to its end: the server hangs up
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"timeout"' in answer


def test_prompts_longer_than_allowed(start: StartServer) -> None:
    running = start(max_prompt_tokens=3)
    error = error_of(
        running.client.post("/v1/completions", json={**TEXT, "prompt": [1, 2, 3, 4]}), 400
    )
    assert error["code"] == "context_length_exceeded"


def test_another_model_and_unknown_paths(running: Running) -> None:
    answer = running.client.post("/v1/completions", json={**TEXT, "model": "gpt"})
    assert error_of(answer, 404)["code"] == "model_not_found"
    error_of(running.client.get("/v1/models/gpt"), 404)
    error_of(running.client.get("/v2"), 404)
    error_of(running.client.get("/v1/completions"), 405)
    assert running.client.get(f"/v1/models/{MODEL}").json()["id"] == MODEL
    assert [one["id"] for one in running.client.get("/v1/models").json()["data"]] == [MODEL]


def test_the_api_key(start: StartServer) -> None:
    running = start(api_key="s3cret")
    for given in (None, b"Bearer wrong", b"Bearer \xff", b"s3cret", b"bearer s3cre"):
        headers = {} if given is None else {b"Authorization": given}
        answer = running.client.post("/v1/completions", json=TEXT, headers=headers)
        assert error_of(answer, 401)["code"] == "invalid_api_key"
        assert "s3cret" not in answer.text
    good = {"Authorization": "Bearer s3cret"}
    assert running.client.post("/v1/completions", json=TEXT, headers=good).status_code == 200
    assert running.client.get("/health").status_code == 200


@pytest.mark.parametrize("origins", [(), ("https://good.example",)])
def test_cors_is_off_unless_asked_for(start: StartServer, origins: tuple[str, ...]) -> None:
    running = start(cors_origins=origins)
    headers = {"Origin": "https://good.example"}
    answer = running.client.post("/v1/completions", json=TEXT, headers=headers)
    assert ("access-control-allow-origin" in answer.headers) == bool(origins)


def test_settings_that_serve_nobody() -> None:
    with pytest.raises(ConfigError, match="max_tokens=0 must be greater than 0"):
        ServerSettings(MODEL, max_tokens=0)
    with pytest.raises(ConfigError, match="API key"):
        ServerSettings(MODEL, api_key=" ")
