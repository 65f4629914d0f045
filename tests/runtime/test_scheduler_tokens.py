"""Side by side, in any mixture, each request gives the tokens of a run alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spec_compile.runtime.api import Decoder
from spec_compile.runtime.requests import GenerationOptions
from spec_compile.runtime.shared_decoder import Prepared, SharedDecoder
from tests.helpers.toy_bundle import VOCAB, Toy
from tests.helpers.workload import alone, mixed_requests

LoadToy = Callable[[Toy], Decoder]
ToyFolder = Callable[[Toy], Path]
Requests = list[tuple[list[int], dict[str, Any]]]


def together(shared: SharedDecoder, requests: Requests) -> list[Any]:
    """(tokens, reason) of requests that were submitted at once."""
    tickets = []
    for prompt, options in requests:
        parsed = GenerationOptions(**options)
        tickets += shared.submit(Prepared([prompt], parsed, parsed.row_seeds(1)))
    for ticket in tickets:
        for _ in ticket.follow():
            pass
    return [(tuple(t.row.token_ids), t.row.finish_reason) for t in tickets]


@pytest.mark.parametrize("prefill_chunk", [1, 5, 64])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("fusion", ["verify", "step"])
def test_each_request_as_if_alone(
    load_toy: LoadToy, toy_folder: ToyFolder, fusion: str, k: int, prefill_chunk: int
) -> None:
    toy = Toy(fusion=fusion, k=k)
    requests = mixed_requests(40, vocab_size=VOCAB, longest=47, seed=k)
    with SharedDecoder.load(
        toy_folder(toy), num_slots=5, prefill_chunk=prefill_chunk, num_threads=1
    ) as shared:
        assert together(shared, requests) == alone(load_toy(toy), requests)


@pytest.mark.parametrize("num_slots", [1, 2, 9])
def test_any_number_of_slots(load_toy: LoadToy, toy_folder: ToyFolder, num_slots: int) -> None:
    requests = mixed_requests(25, vocab_size=VOCAB, longest=20, seed=9)
    with SharedDecoder.load(toy_folder(Toy()), num_slots=num_slots, num_threads=1) as shared:
        assert together(shared, requests) == alone(load_toy(Toy()), requests)


def test_target_only_beside_speculative(load_toy: LoadToy, toy_folder: ToyFolder) -> None:
    requests = mixed_requests(24, vocab_size=VOCAB, longest=20, seed=2)
    for number, (_, options) in enumerate(requests):
        options["speculative"] = number % 2 == 0
    with SharedDecoder.load(toy_folder(Toy()), num_slots=3, num_threads=1) as shared:
        assert together(shared, requests) == alone(load_toy(Toy()), requests)


def test_greedy_rule(load_toy: LoadToy, toy_folder: ToyFolder) -> None:
    toy = Toy(acceptance="greedy")
    requests = mixed_requests(20, vocab_size=VOCAB, longest=30, seed=3, samples=False)
    with SharedDecoder.load(toy_folder(toy), num_slots=4, num_threads=1) as shared:
        assert together(shared, requests) == alone(load_toy(toy), requests)


def test_prompts_up_to_the_capacity(load_toy: LoadToy, toy_folder: ToyFolder) -> None:
    toy = Toy(max_length=24)
    requests: Requests = [
        ([1 + number % 12] * length, {"temperature": 1.0, "seed": number, "ignore_eos": True})
        for number, length in enumerate([23, 22, 1, 23, 20, 19, 2, 21])
    ]
    expected = alone(load_toy(toy), requests)
    for chunk in (1, 7):
        with SharedDecoder.load(
            toy_folder(toy), num_slots=4, prefill_chunk=chunk, num_threads=1
        ) as shared:
            assert together(shared, requests) == expected


def test_public_methods_give_what_a_decoder_gives(load_toy: LoadToy, toy_folder: ToyFolder) -> None:
    plain = load_toy(Toy())
    options: Any = {"temperature": 0.9, "seed": 4, "max_new_tokens": 12, "stop": "cc"}
    prompts = ["ab", "bca", "c a", "aa", "b", "cab"]
    with SharedDecoder.load(toy_folder(Toy()), num_threads=1) as shared:
        for mine, theirs in zip(
            shared.generate(prompts, **options), plain.generate(prompts, **options), strict=True
        ):
            assert (mine.text, mine.token_ids) == (theirs.text, theirs.token_ids)
            assert (mine.seed, mine.finish_reason) == (theirs.seed, theirs.finish_reason)
            assert mine.stats.acceptance_histogram == theirs.stats.acceptance_histogram
        pieces = list(shared.stream("ab", **options))
        assert "".join(pieces) == plain.generate("ab", **options).text
        tokens = tuple(shared.stream_tokens("ab", **options))
        assert tokens == plain.generate("ab", **options).token_ids
        messages = [{"role": "user", "content": "ab"}]
        answers = [one.chat(messages, **options) for one in (shared, plain)]
        assert answers[0].token_ids == answers[1].token_ids
