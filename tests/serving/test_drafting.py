"""Bundles of prompt lookup behind a server, and adaptive requests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from spec_compile.runtime.api import load
from spec_compile.runtime.async_decoder import AsyncDecoder
from spec_compile.runtime.shared_decoder import SharedDecoder
from spec_compile.serving.settings import ServerSettings
from tests.helpers.toy_bundle import Toy, write_toy_bundle
from tests.serving.conftest import MODEL, Announced, Running
from tests.serving.test_refusals import error_of

LOOKUP = Toy(max_length=96, acceptance="match", drafter="prompt-lookup")


@pytest.fixture(scope="module")
def lookup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, Any]]:
    """A client of a server over a bundle of prompt lookup, and a plain decoder of the bundle."""
    folder: Path = write_toy_bundle(LOOKUP, tmp_path_factory.mktemp("lookup") / MODEL)
    shared = SharedDecoder.load(folder, num_slots=3, num_threads=1)
    server = Announced(AsyncDecoder(shared), ServerSettings(MODEL), port=0)
    thread = threading.Thread(target=server.run)
    thread.start()
    assert server.ready.wait(30)
    host, port = server.address
    with httpx.Client(base_url=f"http://{host}:{port}", timeout=30) as client:
        yield client, load(folder, num_threads=1)
    server.should_exit = True
    thread.join(30)


@pytest.mark.parametrize("adaptive", [False, True])
def test_prompt_lookup_behind_the_server(lookup: Any, adaptive: bool) -> None:
    client, plain = lookup
    options: dict[str, Any] = {"temperature": 0.9, "prompt_lookup_max": 2}
    body = {"model": MODEL, "max_tokens": 30, "adaptive": adaptive, **options}

    def ask(seed: int) -> str:
        answer = client.post("/v1/completions", json={**body, "prompt": "abcabc", "seed": seed})
        return str(answer.json()["choices"][0]["text"])

    with ThreadPoolExecutor(6) as pool:
        texts = list(pool.map(ask, range(12)))
    runs = [plain.generate("abcabc", max_new_tokens=30, seed=seed, **options) for seed in range(12)]
    assert texts == [run.text for run in runs]
    assert "spec_decode_num_draft_tokens_total" in client.get("/metrics").text


def test_n_gram_sizes_out_of_order(lookup: Any) -> None:
    body = {"model": MODEL, "prompt": "ab", "prompt_lookup_min": 3, "prompt_lookup_max": 2}
    answer = lookup[0].post("/v1/completions", json=body)
    assert "must be at most prompt_lookup_max=2" in error_of(answer, 400)["message"]


@pytest.mark.parametrize("name,value", [("adaptive", 1), ("prompt_lookup_min", 2)])
def test_what_the_bundle_has_no_use_for(running: Running, name: str, value: Any) -> None:
    body = {"model": MODEL, "prompt": "ab", name: value}
    assert name in error_of(running.client.post("/v1/completions", json=body), 400)["message"]
