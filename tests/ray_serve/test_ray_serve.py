"""Two replicas under load, one killed: what had not begun is served, what had is told."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from spec_compile.runtime.api import Decoder
from tests.ray_serve.conftest import Cluster

pytestmark = pytest.mark.slow
NUM_TOKENS = 800
NUM_REQUESTS = 12  # all that two replicas take: both have some that wait
MOST_KILLS = 4
_PATIENCE = 120.0  # seconds; a request that is lost fails the test


@dataclass
class Outcome:
    """What one client saw."""

    texts: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    error: str | None = None
    done: bool = False
    attempts: int = 0

    @property
    def text(self) -> str:
        return "".join(self.texts)


class Load:
    """Clients that stream side by side, and a way to wait until all replicas have begun."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.changed = threading.Condition()
        self.begun_on: set[str] = set()

    def stream(self, seed: int) -> Outcome:
        outcome = Outcome()
        with httpx.stream("POST", self.url, json=body(seed), timeout=_PATIENCE) as response:
            assert response.status_code == 200, response.read()
            outcome.attempts = int(response.headers["x-attempts"])
            with self.changed:  # the headers come with the first piece
                self.begun_on.add(response.headers["x-replica"])
                self.changed.notify_all()
            for line in filter(None, response.iter_lines()):
                read_event(line.removeprefix("data: "), outcome)
        return outcome

    def await_begun(self, num_replicas: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.begun_on) == num_replicas, _PATIENCE)


def body(seed: int, **more: Any) -> dict[str, Any]:
    sampling = {"temperature": 0.75, "seed": seed, "max_tokens": NUM_TOKENS, "ignore_eos": True}
    return {"prompt": "ab", "stream": True, **sampling, **more}


def read_event(data: str, outcome: Outcome) -> None:
    if data == "[DONE]":
        outcome.done = True
        return
    event = json.loads(data)
    if "error" in event:
        outcome.error = event["error"]["message"]
        return
    outcome.texts.append(event["choices"][0]["text"])
    outcome.finish_reason = event["choices"][0]["finish_reason"]


def completion(cluster: Cluster, **fields: Any) -> httpx.Response:
    return httpx.post(f"{cluster.url}/v1/completions", json=fields, timeout=_PATIENCE)


def test_an_answer_is_the_single_run(cluster: Cluster, plain: Decoder) -> None:
    alone = plain.generate("ab", temperature=0.75, seed=5, max_new_tokens=20, stop=["cc"])
    fields = {"prompt": "ab", "temperature": 0.75, "seed": 5, "max_tokens": 20, "stop": ["cc"]}
    answer = completion(cluster, **fields).json()
    assert answer["choices"][0]["text"] == alone.text
    assert answer["choices"][0]["finish_reason"] == alone.finish_reason
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": len(alone.token_ids)}
    outcome = Load(f"{cluster.url}/v1/completions").stream(7)
    assert (outcome.text, outcome.done) == (single_run(plain, 7), True)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"prompt": "ab", "best_of": 2, "echo": True}, "not served: best_of, echo"),
        ({"prompt": "ab", "top_p": 12}, "top_p=12 must be"),
        ({"prompt": ["ab"]}, "prompt must be a text"),
        ({"max_tokens": 3}, "a JSON object with a prompt"),
        ({"prompt": ""}, "the prompt is empty"),
    ],
)
def test_a_wrong_request_is_named(fields: dict[str, Any], message: str, cluster: Cluster) -> None:
    for stream in (False, True):
        refused = completion(cluster, **fields, stream=stream)
        assert refused.status_code == 400
        assert message in refused.json()["error"]["message"]


def test_other_paths_are_not_found(cluster: Cluster) -> None:
    assert httpx.get(f"{cluster.url}/health").json() == {"status": "ok"}
    assert httpx.get(f"{cluster.url}/v1/completions").status_code == 404


def test_clients_that_leave_free_their_rows(cluster: Cluster) -> None:
    endless = body(1, max_tokens=59_000)
    for _ in range(6):  # there are four rows
        with httpx.stream(
            "POST", f"{cluster.url}/v1/completions", json=endless, timeout=_PATIENCE
        ) as response:
            assert next(response.iter_lines()).startswith("data: ")
    assert completion(cluster, prompt="ab", max_tokens=4).status_code == 200


def test_a_killed_replica_loses_nothing_that_had_not_begun(
    cluster: Cluster, plain: Decoder
) -> None:
    """What is promised holds after every kill; kills go on until both promises were needed."""
    alone = [single_run(plain, seed) for seed in range(NUM_REQUESTS)]
    num_broken = num_retried = 0
    for _ in range(MOST_KILLS):
        outcomes = kill_under_load(cluster)
        for outcome, text in zip(outcomes, alone, strict=True):
            check_outcome(outcome, text)
        num_broken += sum(outcome.error is not None for outcome in outcomes)
        num_retried += sum(outcome.attempts > 1 for outcome in outcomes)
        await_replacement(cluster)
        if num_broken and num_retried:
            break
    assert num_broken and num_retried


def single_run(plain: Decoder, seed: int) -> str:
    result = plain.generate(
        "ab", temperature=0.75, seed=seed, max_new_tokens=NUM_TOKENS, ignore_eos=True
    )
    assert result.text is not None
    return result.text


def kill_under_load(cluster: Cluster) -> list[Outcome]:
    """Kill one of two replicas once both have begun to stream; wait for all clients."""
    load = Load(f"{cluster.url}/v1/completions")
    victim, _ = cluster.replicas()
    with ThreadPoolExecutor(NUM_REQUESTS) as pool:
        futures = [pool.submit(load.stream, seed) for seed in range(NUM_REQUESTS)]
        load.await_begun(num_replicas=2)
        victim.kill()
        return [future.result() for future in futures]


def check_outcome(outcome: Outcome, alone: str) -> None:
    """All of the answer, or a part of it and a clear error."""
    if outcome.error is None:
        assert (outcome.text, outcome.finish_reason) == (alone, "length")
    else:
        assert outcome.texts and alone.startswith(outcome.text)
        assert "replica" in outcome.error and "send it again" in outcome.error
    assert outcome.done == (outcome.error is None)


def await_replacement(cluster: Cluster) -> None:
    """Ask for answers, which all come, until there are two replicas again."""
    deadline, seen = time.monotonic() + _PATIENCE, set[str]()
    while len(seen) < 2:
        answer = completion(cluster, prompt="ab", max_tokens=4)
        assert answer.status_code == 200
        seen.add(answer.headers["x-replica"])
        assert time.monotonic() < deadline
