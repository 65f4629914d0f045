"""`return_token_kinds`: kinds are those of the decoder's rounds; nobody else notices."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest

from spec_compile.runtime.api import GenerationResult
from tests.serving.conftest import MODEL, Running
from tests.serving.test_completions import events
from tests.serving.test_refusals import error_of

OPTIONS: dict[str, Any] = {"seed": 11, "temperature": 1.0}
TEXT: dict[str, Any] = {"model": MODEL, "prompt": "ab", "max_tokens": 40, **OPTIONS}
MESSAGES = [{"role": "user", "content": "ab"}]
PATHS = ["/v1/completions", "/v1/chat/completions"]


def body_of(path: str, **change: Any) -> dict[str, Any]:
    body = {**TEXT, "return_token_kinds": True, **change}
    if "chat" in path:
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
    return body


def wanted_from(running: Running, path: str, **options: Any) -> GenerationResult:
    options = {"max_new_tokens": 40, **OPTIONS, **options}
    if "chat" in path:
        return running.plain.chat(MESSAGES, **options)
    return running.plain.generate("ab", **options)


def kinds_by_round(result: GenerationResult) -> list[str]:
    """Spelled out round by round, apart from the code under test."""
    kinds = []
    for one in result.stats.rounds:
        for place in range(one.num_emitted_tokens):
            if one.num_draft_tokens == 0:
                kinds.append("target")
            elif place < one.num_accepted_tokens:
                kinds.append("accepted")
            else:
                kinds.append("bonus" if place == one.num_draft_tokens else "recovered")
    return kinds


def counts(rounds: list[dict[str, Any]]) -> list[tuple[int, int, int]]:
    names = ("num_draft_tokens", "num_accepted_tokens", "num_emitted_tokens")
    assert all(set(one) == {*names, "milliseconds"} for one in rounds)
    return [tuple(one[name] for name in names) for one in rounds]


def counts_of(result: GenerationResult) -> list[tuple[int, int, int]]:
    return [
        (one.num_draft_tokens, one.num_accepted_tokens, one.num_emitted_tokens)
        for one in result.stats.rounds
    ]


def said(choice: dict[str, Any]) -> str:
    delta = choice.get("delta", {"content": choice.get("text")})
    return delta.get("content") or ""


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("speculative", [True, False])
@pytest.mark.parametrize("stop", [[], ["bca", "€"]], ids=["to the end", "stopped"])
def test_a_stream_tells_kinds(
    running: Running, path: str, speculative: bool, stop: list[str]
) -> None:
    change = {"speculative": speculative, "stop": stop}
    chunks = events(running, path, body_of(path, **change))
    wanted = wanted_from(running, path, **change)
    choices = [chunk["choices"][0] for chunk in chunks]
    reports = [choice["spec_compile"] for choice in choices if "spec_compile" in choice]
    tokens = list(chain.from_iterable(report["tokens"] for report in reports))
    rounds = list(chain.from_iterable(report["rounds"] for report in reports))
    assert [token["kind"] for token in tokens] == kinds_by_round(wanted)
    assert counts(rounds) == counts_of(wanted)
    assert "".join(token["text"] for token in tokens) == wanted.text
    for choice in choices:  # the text of every chunk is that of its tokens
        told = choice.get("spec_compile", {"tokens": []})["tokens"]
        assert said(choice) == "".join(token["text"] for token in told)
    stats = reports[-1]["stats"]
    assert stats["acceptance_histogram"] == list(wanted.stats.acceptance_histogram)
    assert stats["num_emitted_tokens"] == len(wanted.token_ids)
    assert len(reports) > 1 and not any("stats" in report for report in reports[:-1])


@pytest.mark.parametrize("path", PATHS)
def test_a_whole_answer_tells_kinds_of_each_choice(running: Running, path: str) -> None:
    answer = running.client.post(path, json=body_of(path, n=2)).json()
    for index, choice in enumerate(answer["choices"]):
        wanted, told = wanted_from(running, path, seed=11 + index), choice["spec_compile"]
        assert [token["kind"] for token in told["tokens"]] == kinds_by_round(wanted)
        assert "".join(token["text"] for token in told["tokens"]) == wanted.text
        assert counts(told["rounds"]) == counts_of(wanted)
        assert told["stats"]["num_rounds"] == wanted.stats.num_rounds


def test_choices_of_a_stream_are_told_apart(running: Running) -> None:
    chunks = events(running, PATHS[0], body_of(PATHS[0], n=3))
    for index in range(3):
        told = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        kinds = [t["kind"] for choice in told for t in choice["spec_compile"]["tokens"]]
        assert kinds == kinds_by_round(wanted_from(running, PATHS[0], seed=11 + index))


@pytest.mark.parametrize("asked", [{}, {"return_token_kinds": False}, {"return_token_kinds": None}])
def test_who_does_not_ask_is_told_nothing(running: Running, asked: dict[str, Any]) -> None:
    for chunk in events(running, PATHS[0], {**TEXT, **asked}):
        assert set(chunk["choices"][0]) == {"index", "text", "logprobs", "finish_reason"}
    whole = running.client.post(PATHS[0], json={**TEXT, **asked}).json()
    assert set(whole["choices"][0]) == {"index", "text", "logprobs", "finish_reason"}


def test_a_value_that_is_no_flag_is_refused(running: Running) -> None:
    answer = running.client.post(PATHS[0], json={**TEXT, "return_token_kinds": 1})
    assert error_of(answer, 400)["param"] == "return_token_kinds"


def test_openais_client_reads_the_text_as_ever(running: Running) -> None:
    openai = pytest.importorskip("openai")
    host, port = running.server.address
    client = openai.OpenAI(base_url=f"http://{host}:{port}/v1", api_key="any", max_retries=0)
    stream = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=40,
        stream=True,
        seed=11,
        extra_body={"return_token_kinds": True},
    )
    chunks = list(stream)
    wanted = wanted_from(running, PATHS[1])
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == wanted.text
    kinds = [t["kind"] for c in chunks[1:] for t in c.choices[0].spec_compile["tokens"]]
    assert kinds == kinds_by_round(wanted)
