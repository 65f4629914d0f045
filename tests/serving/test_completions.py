"""The two completion endpoints give what the decoder gives, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.serving.conftest import MODEL, Running

OPTIONS: dict[str, Any] = {"seed": 5, "temperature": 0.9, "max_tokens": 12}
TEXT = {"model": MODEL, "prompt": "ab", **OPTIONS}
MESSAGES = [{"role": "user", "content": "ab"}]
CHAT = {"model": MODEL, "messages": MESSAGES, **OPTIONS}


def expected(running: Running, prompt: Any, seed: int = 5, **more: Any) -> Any:
    return running.plain.generate(prompt, seed=seed, temperature=0.9, max_new_tokens=12, **more)


def events(running: Running, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with running.client.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_text(running: Running) -> None:
    answer = running.client.post("/v1/completions", json=TEXT).json()
    wanted = expected(running, "ab")
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["model"] == MODEL
    (choice,) = answer["choices"]
    assert choice["text"] == wanted.text
    assert choice["logprobs"] is None
    reason = {"eos": "stop", "length": "length"}[wanted.finish_reason]
    assert choice["finish_reason"] == reason
    tokens = len(wanted.token_ids)
    assert answer["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": tokens,
        "total_tokens": 2 + tokens,
    }


def test_prompts_and_choices(running: Running) -> None:
    body = {**TEXT, "prompt": ["ab", "b"], "n": 2}
    answer = running.client.post("/v1/completions", json=body).json()
    wanted = [expected(running, prompt, 5 + i) for i, prompt in enumerate(["ab", "ab", "b", "b"])]
    assert [choice["text"] for choice in answer["choices"]] == [one.text for one in wanted]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == 3


def test_token_ids_and_stop(running: Running) -> None:
    body = {**TEXT, "prompt": [1, 2], "stop": ["c", "a"]}
    choice = running.client.post("/v1/completions", json=body).json()["choices"][0]
    wanted = expected(running, [1, 2], stop=["c", "a"])
    assert (choice["text"], wanted.finish_reason) == (wanted.text, "stop")
    assert choice["finish_reason"] == "stop"


def test_defaults_are_openais(running: Running) -> None:
    body = {"model": MODEL, "prompt": "ab", "seed": 3, "ignore_eos": True}
    answer = running.client.post("/v1/completions", json=body).json()
    wanted = running.plain.generate(
        "ab", seed=3, temperature=1.0, max_new_tokens=16, ignore_eos=True
    )
    assert answer["choices"][0]["text"] == wanted.text


def test_chat(running: Running) -> None:
    answer = running.client.post("/v1/chat/completions", json=CHAT).json()
    wanted = running.plain.chat(MESSAGES, seed=5, temperature=0.9, max_new_tokens=12)
    assert answer["object"] == "chat.completion"
    message = {"role": "assistant", "content": wanted.text}
    assert answer["choices"][0]["message"] == message


def test_chat_takes_parts_and_the_newer_name_of_the_budget(running: Running) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = {**CHAT, "messages": [{"role": "user", "content": parts}]}
    body["max_completion_tokens"] = body.pop("max_tokens")
    answers = [
        running.client.post("/v1/chat/completions", json=one).json()["choices"]
        for one in (body, CHAT)
    ]
    assert answers[0] == answers[1]


def test_streamed_text(running: Running) -> None:
    chunks = events(running, "/v1/completions", TEXT)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected(running, "ab").text
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None] * (
        len(chunks) - 1
    )
    assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_streamed_chat_with_usage(running: Running) -> None:
    body = {**CHAT, "stream_options": {"include_usage": True}}
    *chunks, last = events(running, "/v1/chat/completions", body)
    wanted = running.plain.chat(MESSAGES, seed=5, temperature=0.9, max_new_tokens=12)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == wanted.text
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == len(wanted.token_ids)
    assert last["object"] == "chat.completion.chunk"


def test_streamed_choices_are_told_apart_by_index(running: Running) -> None:
    chunks = events(running, "/v1/completions", {**TEXT, "n": 3})
    texts = ["", "", ""]
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == [expected(running, "ab", 5 + index).text for index in range(3)]


def test_openai_client(running: Running) -> None:
    openai = pytest.importorskip("openai")
    host, port = running.server.address
    client = openai.OpenAI(base_url=f"http://{host}:{port}/v1", api_key="any", max_retries=0)
    wanted = running.plain.chat(MESSAGES, seed=5, temperature=0.9, max_new_tokens=12)
    answer = client.chat.completions.create(**CHAT)
    assert answer.choices[0].message.content == wanted.text
    stream = client.chat.completions.create(**CHAT, stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(pieces) == wanted.text
    assert client.models.list().data[0].id == MODEL
    with pytest.raises(openai.BadRequestError, match="'logprobs' is not supported"):
        client.chat.completions.create(**CHAT, logprobs=True)
