"""The written repository, served by a real Triton and asked over gRPC and HTTP."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from spec_compile.deploying.triton import TritonSettings, write_repository
from spec_compile.runtime.api import Decoder, load
from tests.deploying.conftest import ServerEndedError, StartTriton, Triton
from tests.helpers.toy_bundle import Toy, write_toy_bundle

pytestmark = pytest.mark.slow
# More rounds than any test waits for: who asks for all of them has to be cancelled.
ENDLESS = Toy(max_length=400_000, batch_size=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("triton")


@pytest.fixture(scope="module")
def plain(folder: Path) -> Decoder:
    return load(write_toy_bundle(Toy(max_length=96), folder / "toy"), num_threads=1)


@pytest.fixture(scope="module")
def repository(folder: Path, plain: Decoder) -> Path:
    settings = TritonSettings(num_slots=3, num_threads=1)
    return write_repository(folder / "toy", folder / "models", settings=settings)


@pytest.fixture(scope="module")
def server(start_triton: StartTriton, repository: Path) -> Iterator[Triton]:
    with start_triton(repository) as running:
        yield running


def asked(text: str = "ab", /, **more: list[Any]) -> dict[str, Any]:
    return {"inputs": {"text_input": ["BYTES", [text]], **more}}


def token_ids(answer: dict[str, Any]) -> list[int]:
    return [token for _, ids, _ in answer["pieces"] for token in ids]


def sampled(seed: int, **more: list[Any]) -> dict[str, Any]:
    temperature, seeds = ["FP32", [0.75]], ["INT64", [seed]]
    return asked(temperature=temperature, seed=seeds, max_new_tokens=["INT32", [40]], **more)


def test_streams_side_by_side_are_the_single_runs(server: Triton, plain: Decoder) -> None:
    answers = server.ask("toy", *(sampled(seed) for seed in range(8)))
    for seed, answer in enumerate(answers):
        alone = plain.generate("ab", temperature=0.75, seed=seed, max_new_tokens=40)
        texts, _, reasons = zip(*answer["pieces"], strict=True)
        assert token_ids(answer) == list(alone.token_ids)
        assert "".join(texts) == alone.text
        assert set(reasons[:-2]) <= {"running"} and reasons[-1] == alone.finish_reason
    assert max(len(answer["pieces"]) for answer in answers) > 3


def test_every_option_reaches_the_runtime(server: Triton, plain: Decoder) -> None:
    given: dict[str, list[Any]] = {
        "top_k": ["INT32", [5]],
        "top_p": ["FP32", [0.5]],
        "min_p": ["FP32", [0.25]],
        "stop": ["BYTES", ["ca", "bb"]],
        "ignore_eos": ["BOOL", [True]],
        "speculative": ["BOOL", [False]],
        "chat": ["BOOL", [True]],
    }
    (answer,) = server.ask("toy", sampled(3, stream=["BOOL", [False]], **given))
    options: Any = {name: values[0] for name, (_, values) in given.items()}
    options |= {"stop": ["ca", "bb"], "temperature": 0.75, "seed": 3, "max_new_tokens": 40}
    alone = plain.generate("ab", **options)
    assert answer["pieces"] == [[alone.text, list(alone.token_ids), alone.finish_reason]]


def test_token_ids_are_a_prompt_too(server: Triton, plain: Decoder) -> None:
    request = {"inputs": {"input_ids": ["INT64", [5, 1, 2, 9]], "stream": ["BOOL", [False]]}}
    (answer,) = server.ask("toy", request)
    assert answer["pieces"][0][1] == list(plain.generate([5, 1, 2, 9]).token_ids)


def test_a_wrong_request_fails_alone(server: Triton, plain: Decoder) -> None:
    both = asked(input_ids=["INT64", [1, 2]])
    wrong = {
        "text_input is not UTF-8": asked("\xff"),
        "give one of text_input and input_ids": both,
        "top_p=1.5": asked(top_p=["FP32", [1.5]]),
        "token id 99": {"inputs": {"input_ids": ["INT64", [99]]}},
        "the prompt is empty": {"inputs": {"input_ids": ["INT64", []]}},
    }
    answers = server.ask("toy", sampled(1), *wrong.values(), sampled(2))
    for answer, message in zip(answers[1:-1], wrong, strict=True):
        assert message in answer["error"] and answer["pieces"] == []
    for answer, seed in ((answers[0], 1), (answers[-1], 2)):
        alone = plain.generate("ab", temperature=0.75, seed=seed, max_new_tokens=40)
        assert token_ids(answer) == list(alone.token_ids)


def test_http_streams_and_refuses_unknown_fields(server: Triton, plain: Decoder) -> None:
    address = f"{server.http}/v2/models/toy"
    body = {"text_input": "ab", "max_new_tokens": 20}
    events = httpx.post(f"{address}/generate_stream", json=body).text.split("\n\n")
    pieces = [json.loads(event.removeprefix("data: ")) for event in events if event.strip()]
    alone = plain.generate("ab", max_new_tokens=20)
    assert "".join(piece["text_output"] for piece in pieces) == alone.text
    whole = httpx.post(f"{address}/generate", json={**body, "stream": False}).json()
    assert (whole["text_output"], whole["finish_reason"]) == (alone.text, alone.finish_reason)
    refused = httpx.post(f"{address}/generate", json={**body, "stream": False, "best_of": 2})
    assert refused.status_code == 400 and refused.json() == {"error": "unknown: best_of"}


def test_a_client_that_leaves_frees_its_row(start_triton: StartTriton, folder: Path) -> None:
    bundle = write_toy_bundle(ENDLESS, folder / "endless")
    settings = TritonSettings(num_threads=1, request_seconds=None)
    models = write_repository(bundle, folder / "endless_models", settings=settings)
    endless = asked(max_new_tokens=["INT32", [399_000]], ignore_eos=["BOOL", [True]])
    with start_triton(models) as server:
        left, served = server.ask("endless", {**endless, "cancel": True}, asked())
        assert left["pieces"] and left["error"] is None
        assert served["pieces"][-1][2] in ("eos", "length")


def test_a_server_built_before_numpy_2_is_refused(
    start_triton: StartTriton, repository: Path
) -> None:
    with (
        pytest.raises(ServerEndedError, match=r"not built for NumPy 2\.\d+\.\d+; take a newer"),
        start_triton(repository, Path(sys.prefix)),
    ):
        pass


def test_the_readmes_snippet_runs(server: Triton, repository: Path, plain: Decoder) -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", (repository / "README.md").read_text(), re.S)
    code = snippet.replace("localhost:8001", server.grpc).replace("def fib(n):", "ab")
    done = subprocess.run([server.python, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == plain.generate("ab").text
