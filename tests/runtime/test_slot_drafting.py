"""Prompt lookup and adaptive drafting side by side: each request as if alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from spec_compile.errors import ConfigError
from spec_compile.runtime import slot_drafting
from spec_compile.runtime.adaptive import Planner
from spec_compile.runtime.api import Decoder
from spec_compile.runtime.requests import GenerationOptions
from spec_compile.runtime.shared_decoder import Prepared, SharedDecoder
from spec_compile.runtime.ticket import Ticket
from tests.helpers.toy_bundle import VOCAB, Toy
from tests.helpers.workload import alone, mixed_requests

LoadToy = Callable[[Toy], Decoder]
ToyFolder = Callable[[Toy], Path]
Requests = list[tuple[list[int], dict[str, Any]]]
SCRIPTS = ([0, 3], [0, 0, 0, 1], [3, 0, 0, 2, 1, 0, 0, 0, 0, 3, 3], [2, 2, 0], [0])


def served(shared: SharedDecoder, requests: Requests) -> list[Ticket]:
    """The tickets of requests that were submitted at once, when all have ended."""
    tickets = []
    for prompt, options in requests:
        parsed = GenerationOptions(**options)
        tickets += shared.submit(Prepared([prompt], parsed, parsed.row_seeds(1)))
    for ticket in tickets:
        for _ in ticket.follow():
            pass
    return tickets


def outputs(tickets: Sequence[Ticket]) -> list[Any]:
    return [(tuple(t.row.token_ids), t.row.finish_reason) for t in tickets]


def lookup(acceptance: str = "match", **change: Any) -> Toy:
    return Toy(acceptance=acceptance, drafter="prompt-lookup", **change)


@pytest.mark.parametrize("any_length", [True, False])
@pytest.mark.parametrize("prefill_chunk", [1, 5, 64])
@pytest.mark.parametrize("acceptance", ["match", "greedy"])
def test_prompt_lookup(
    load_toy: LoadToy,
    toy_folder: ToyFolder,
    acceptance: str,
    prefill_chunk: int,
    any_length: bool,
) -> None:
    """Rows that find something beside rows that do not, and requests of other n-gram sizes."""
    toy = lookup(acceptance, any_length=any_length)
    samples = acceptance == "match"
    requests = mixed_requests(30, vocab_size=5, longest=47, seed=1, samples=samples)
    for number, (_, options) in enumerate(requests):
        options["speculative"] = number % 5 > 0
        options["prompt_lookup_max"] = 1 + number % 4
    plain = load_toy(toy)
    with SharedDecoder.load(
        toy_folder(toy), num_slots=4, prefill_chunk=prefill_chunk, num_threads=1
    ) as shared:
        tickets = served(shared, requests)
    assert outputs(tickets) == alone(plain, requests)
    for ticket, (prompt, options) in zip(tickets, requests, strict=True):
        stats, expected = ticket.row.stats(), plain.generate(prompt, **options).stats
        assert stats.num_draft_tokens == expected.num_draft_tokens
        assert stats.acceptance_histogram == expected.acceptance_histogram
    proposed = {r.num_draft_tokens for t in tickets for r in t.row.stats().rounds}
    assert {0, 3} <= proposed


@pytest.mark.parametrize("toy", [Toy(acceptance="match"), lookup(), lookup("greedy")])
def test_adaptive_requests_beside_others(
    load_toy: LoadToy, toy_folder: ToyFolder, toy: Toy
) -> None:
    samples = toy.acceptance == "match"
    requests = mixed_requests(40, vocab_size=VOCAB, longest=40, seed=4, samples=samples)
    expected = alone(load_toy(toy), requests)
    for number, (_, options) in enumerate(requests):
        options["adaptive"] = number % 4 > 0
    with SharedDecoder.load(toy_folder(toy), num_slots=4, prefill_chunk=5, num_threads=1) as shared:
        assert outputs(served(shared, requests)) == expected


def script(monkeypatch: pytest.MonkeyPatch, lengths: Sequence[int]) -> None:
    """Let calls verify the given numbers of draft tokens in turn, whatever they cost."""
    numbers = itertools.cycle(lengths)

    class Scripted(Planner):
        def choose(self, available: Sequence[int]) -> int:
            return min(next(numbers), max(available))

    monkeypatch.setattr(slot_drafting, "Planner", Scripted)


@pytest.mark.parametrize("prefill_chunk", [2, 64])
@pytest.mark.parametrize("lengths", SCRIPTS)
@pytest.mark.parametrize("draft", ["self", "good", "wrong"])
def test_calls_of_any_numbers_of_draft_tokens(
    toy_folder: ToyFolder,
    monkeypatch: pytest.MonkeyPatch,
    draft: str,
    lengths: list[int],
    prefill_chunk: int,
) -> None:
    """Greedy, in rows that come and go. The draft reads up what was emitted without it: one that
    is the target is right each time.
    """
    script(monkeypatch, lengths)
    toy = Toy(draft=draft)
    requests = [
        (prompt, {**options, "adaptive": True, "ignore_eos": True})
        for prompt, options in mixed_requests(
            20, vocab_size=VOCAB, longest=40, seed=7, samples=False
        )
    ]
    with SharedDecoder.load(
        toy_folder(toy), num_slots=3, prefill_chunk=prefill_chunk, num_threads=1
    ) as shared:
        tickets = served(shared, requests)
    for ticket, (prompt, options) in zip(tickets, requests, strict=True):
        most = min(options["max_new_tokens"], toy.max_length - len(prompt))
        assert ticket.row.token_ids == toy.target.greedy(prompt, most)
        stats = ticket.row.stats()
        if draft == "self":
            assert stats.num_accepted_tokens == stats.num_draft_tokens
        if draft == "wrong":
            assert stats.num_accepted_tokens == 0
    drafted = sum(ticket.row.stats().num_draft_tokens for ticket in tickets)
    assert (drafted > 0) == any(lengths)


@pytest.mark.parametrize("lengths", SCRIPTS[:3])
def test_a_draft_equal_to_the_target_is_accepted_at_any_temperature(
    toy_folder: ToyFolder, monkeypatch: pytest.MonkeyPatch, lengths: list[int]
) -> None:
    """The laws of the first draft tokens reach the rule, each in its place and row."""
    script(monkeypatch, lengths)
    options = {"temperature": 1.3, "adaptive": True, "ignore_eos": True, "max_new_tokens": 20}
    requests: Requests = [([1 + n, 2, 3][: 1 + n % 3], {**options, "seed": n}) for n in range(8)]
    with SharedDecoder.load(toy_folder(Toy(draft="self")), num_slots=3, num_threads=1) as shared:
        for ticket in served(shared, requests):
            stats = ticket.row.stats()
            assert stats.num_accepted_tokens == stats.num_draft_tokens


def test_adaptive_learns_from_its_calls(toy_folder: ToyFolder) -> None:
    """By what they took, so that nothing can be said but that several numbers were tried."""
    toy = Toy(draft="wrong")
    requests: Requests = [
        ([1 + n], {"adaptive": True, "ignore_eos": True, "max_new_tokens": 40}) for n in range(6)
    ]
    with SharedDecoder.load(toy_folder(toy), num_slots=3, num_threads=1) as shared:
        tickets = served(shared, requests)
    assert [t.row.token_ids for t in tickets] == [
        toy.target.greedy(prompt, 40) for prompt, _ in requests
    ]
    tried = {r.num_draft_tokens for t in tickets for r in t.row.stats().rounds[:-1]}
    assert {0, 3} <= tried


@pytest.mark.parametrize(
    "toy,options,message",
    [
        (Toy(fusion="step"), {"adaptive": True}, "adaptive drafting needs rounds of any number"),
        (Toy(), {"adaptive": True, "speculative": False}, "exclude each other"),
        (Toy(), {"prompt_lookup_min": 2}, "is an option of prompt lookup"),
        (lookup(), {"prompt_lookup_min": 9}, "must be at most prompt_lookup_max"),
    ],
)
def test_what_a_bundle_cannot_do_is_refused(
    toy_folder: ToyFolder, toy: Toy, options: Any, message: str
) -> None:
    with (
        SharedDecoder.load(toy_folder(toy), num_threads=1) as shared,
        pytest.raises(ConfigError, match=message),
    ):
        shared.generate([1], **options)
