"""The scheduler's manners: order, limits, cancelling, deadlines, errors, closing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spec_compile.errors import (
    BackendError,
    ClosedError,
    ConfigError,
    GenerationError,
    QueueFullError,
)
from spec_compile.runtime.api import Decoder
from spec_compile.runtime.requests import GenerationOptions
from spec_compile.runtime.shared_decoder import Prepared, SharedDecoder
from spec_compile.runtime.ticket import Ticket
from tests.helpers.gate import GatedEngine
from tests.helpers.toy_bundle import NAN_TOKEN, Toy

LoadToy = Callable[[Toy], Decoder]
ToyFolder = Callable[[Toy], Path]
LONG: dict[str, Any] = {"max_new_tokens": 30, "ignore_eos": True, "temperature": 1.0}
SEED = 11


@pytest.fixture
def gated(load_toy: LoadToy) -> Iterator[Callable[..., tuple[SharedDecoder, GatedEngine]]]:
    """`gated(**arguments)`: a decoder whose engine waits at a gate, and the gate."""
    opened: list[tuple[SharedDecoder, GatedEngine]] = []

    def build(toy: Toy | None = None, **arguments: Any) -> tuple[SharedDecoder, GatedEngine]:
        plain = load_toy(toy or Toy())
        engine = GatedEngine(plain.engine)
        opened.append((SharedDecoder(plain.bundle, engine, plain.tokenizer, **arguments), engine))
        return opened[-1]

    yield build
    for shared, engine in opened:
        engine.open()
        shared.close()


def submit(shared: SharedDecoder, prompt: list[int], **options: Any) -> Ticket:
    timeout = options.pop("timeout", None)
    parsed = GenerationOptions(**{"seed": SEED, **LONG, **options})
    (ticket,) = shared.submit(Prepared([prompt], parsed, parsed.row_seeds(1)), timeout=timeout)
    return ticket


def wait(ticket: Ticket) -> Ticket:
    for _ in ticket.follow():
        pass
    return ticket


def test_a_full_queue_refuses_and_says_so(gated: Any) -> None:
    shared, engine = gated(num_slots=1, max_queue=2)
    engine.close()
    first = submit(shared, [1])
    engine.wait_for_call()  # the first sits in its slot
    waiting = [submit(shared, [2]), submit(shared, [3])]
    with pytest.raises(QueueFullError, match="2 requests wait already"):
        submit(shared, [4])
    engine.open()
    assert all(wait(t).row.finish_reason == "length" for t in [first, *waiting])


def test_a_list_is_queued_whole_or_not_at_all(gated: Any) -> None:
    shared, engine = gated(num_slots=1, max_queue=2)
    engine.close()
    submit(shared, [1])
    engine.wait_for_call()
    with pytest.raises(QueueFullError):
        shared.generate([[1], [2], [3]])
    engine.open()
    assert shared.generate([2], max_new_tokens=1).token_ids


def test_first_come_first_served(gated: Any) -> None:
    shared, engine = gated(num_slots=1)
    engine.close()
    tickets = [submit(shared, [number], max_new_tokens=3) for number in range(1, 6)]
    order: list[int] = []

    def note(number: int) -> None:
        wait(tickets[number])
        order.append(number)

    threads = [threading.Thread(target=note, args=(number,)) for number in range(5)]
    seen = []
    engine.on_call = lambda: seen.append([n for n, t in enumerate(tickets) if t.row.token_ids])
    for thread in threads:
        thread.start()
    engine.open()
    for thread in threads:
        thread.join()
    assert sorted(order) == list(range(5))
    assert all(started == list(range(len(started))) for started in seen)


def test_a_newcomer_joins_while_others_go_on(gated: Any) -> None:
    shared, engine = gated(num_slots=2)
    long = submit(shared, [1, 2], max_new_tokens=40)
    short = wait(submit(shared, [2], max_new_tokens=2))
    assert short.row.finish_reason == "length"
    assert wait(long).row.finish_reason == "length"
    assert max(engine.rows) == 2


def test_a_long_prompt_does_not_stop_the_others(gated: Any) -> None:
    toy = Toy(max_length=400)
    shared, engine = gated(toy, num_slots=2, prefill_chunk=16)
    engine.close()
    talking = submit(shared, [1, 2], max_new_tokens=200)
    engine.wait_for_call()
    long = submit(shared, [3] * 300, max_new_tokens=1)
    counts: list[int] = []
    engine.on_call = lambda: None if long.done else counts.append(len(talking.row.token_ids))
    engine.open()
    wait(long)
    talking.row.cancel()
    wait(talking)
    assert max(engine.widths) <= 16
    # Between two parts of the long prompt the other row had a round each time.
    assert len(set(counts)) >= 300 // 16


def test_cancelling_frees_the_slot(gated: Any) -> None:
    shared, engine = gated(num_slots=1)
    engine.close()
    first, second = submit(shared, [1]), submit(shared, [2], max_new_tokens=2)
    engine.wait_for_call()
    first.row.cancel()
    engine.open()
    assert wait(second).row.finish_reason == "length"
    assert wait(first).row.finish_reason == "cancelled"


def test_cancelling_in_the_queue(gated: Any) -> None:
    shared, engine = gated(num_slots=1)
    engine.close()
    first, second = submit(shared, [1], max_new_tokens=3), submit(shared, [2])
    second.row.cancel()
    engine.open()
    assert wait(second).row.token_ids == []
    assert len(wait(first).row.token_ids) == 3


def test_closing_a_stream_early_frees_the_slot(toy_folder: ToyFolder) -> None:
    with SharedDecoder.load(toy_folder(Toy()), num_slots=1, num_threads=1) as shared:
        stream = shared.stream_tokens([1, 2], seed=1, **LONG)
        next(stream)
        stream.close()
        assert stream.result.finish_reason == "cancelled"
        assert shared.generate([2], max_new_tokens=2).token_ids


def test_a_deadline_that_is_over(gated: Any) -> None:
    shared, engine = gated(num_slots=1)
    engine.close()
    running = submit(shared, [1])
    engine.wait_for_call()
    late = submit(shared, [2], timeout=0.0)
    engine.open()
    assert wait(late).row.finish_reason == "deadline"
    assert late.row.token_ids == []
    assert wait(running).row.finish_reason == "length"


def test_a_deadline_in_the_middle_keeps_what_there_is(gated: Any) -> None:
    shared, engine = gated(num_slots=1)
    ticket = submit(shared, [1], max_new_tokens=40)
    engine.on_call = lambda: setattr(ticket, "deadline", 0.0) if ticket.row.token_ids else None
    wait(ticket)
    assert ticket.row.finish_reason == "deadline"
    assert 0 < len(ticket.row.token_ids) < 40


def test_logits_that_are_no_numbers_end_their_request_alone(load_toy: LoadToy) -> None:
    toy = Toy(with_nan=True)
    plain = load_toy(toy)
    pairs = ([first, second] for first in range(1, 13) for second in range(1, 13))
    prompt = next(pair for pair in pairs if NAN_TOKEN not in toy.target.greedy(pair, 12))
    greedy: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": 8, "ignore_eos": True}
    alone = plain.generate(prompt, **greedy).token_ids
    with SharedDecoder(plain.bundle, plain.engine, plain.tokenizer, num_slots=3) as shared:
        good = submit(shared, prompt, **greedy)
        bad = submit(shared, [NAN_TOKEN])
        with pytest.raises(GenerationError, match="NaN or infinity"):
            wait(bad)
        # The slot has held NaN; its next request must not notice.
        again = submit(shared, prompt, **greedy)
        assert tuple(wait(good).row.token_ids) == tuple(wait(again).row.token_ids) == alone


def test_an_engine_error_of_one_row_leaves_the_others(gated: Any, load_toy: LoadToy) -> None:
    shared, engine = gated(num_slots=3)
    engine.close()
    temperatures = (1.0, 0.5, 2.0)
    tickets = [submit(shared, [1, 2], temperature=each) for each in temperatures]
    engine.fails_at = 0.5
    engine.open()
    with pytest.raises(BackendError, match=r"no run at 0\.5"):
        wait(tickets[1])
    for each, ticket in ((1.0, tickets[0]), (2.0, tickets[2])):
        alone = load_toy(Toy()).generate([1, 2], seed=SEED, **{**LONG, "temperature": each})
        assert tuple(wait(ticket).row.token_ids) == alone.token_ids


def test_closing_ends_what_runs_and_refuses_what_comes(gated: Any) -> None:
    shared, engine = gated(num_slots=1)
    engine.close()
    tickets = [submit(shared, [1]), submit(shared, [2])]
    engine.wait_for_call()
    closing = threading.Thread(target=shared.close)
    closing.start()
    engine.open()
    closing.join()
    assert [wait(t).row.finish_reason for t in tickets] == ["cancelled", "cancelled"]
    with pytest.raises(ClosedError, match="is closed"):
        shared.generate([1])
    assert shared.close()


def test_draining_finishes_what_was_submitted(gated: Any) -> None:
    shared, engine = gated(num_slots=1)
    engine.close()
    tickets = [submit(shared, [number], max_new_tokens=5) for number in (1, 2, 3)]
    engine.open()
    assert shared.close(drain=True)
    assert [len(wait(t).row.token_ids) for t in tickets] == [5, 5, 5]


def test_a_fault_of_our_own_leaves_nobody_waiting(
    gated: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, engine = gated(num_slots=1)
    reported: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", reported.append)
    engine.close()
    tickets = [submit(shared, [1]), submit(shared, [2])]
    engine.on_call = lambda: 1 // 0
    engine.open()
    for ticket in tickets:
        with pytest.raises(ClosedError, match="has stopped"):
            wait(ticket)
    assert not shared.scheduler.is_running
    assert reported[0].exc_type is ZeroDivisionError


def test_a_dropped_decoder_takes_its_worker_along(toy_folder: ToyFolder) -> None:
    shared = SharedDecoder.load(toy_folder(Toy()), num_threads=1)
    worker = shared.scheduler._worker
    del shared
    worker.join(20)
    assert not worker.is_alive()


def test_counters(toy_folder: ToyFolder) -> None:
    with SharedDecoder.load(toy_folder(Toy()), num_slots=2, num_threads=1) as shared:
        results = [shared.generate([1, 2], seed=seed, **LONG) for seed in range(3)]
        found = shared.scheduler.snapshot()
    stats = [result.stats for result in results]
    assert found.num_emitted_tokens == sum(s.num_emitted_tokens for s in stats) == 90
    assert found.num_draft_tokens == sum(s.num_draft_tokens for s in stats)
    assert found.num_accepted_tokens == sum(s.num_accepted_tokens for s in stats)
    histogram = np.sum([s.acceptance_histogram for s in stats], axis=0)
    assert found.accepted_per_position == tuple(np.cumsum(histogram[::-1])[::-1][1:])
    assert found.num_prompt_tokens == 6
    assert found.finished["length"] == 3
    assert (found.running, found.waiting) == (0, 0)


@pytest.mark.parametrize("name", ["num_slots", "max_queue", "prefill_chunk"])
def test_numbers_must_be_positive(toy_folder: ToyFolder, name: str) -> None:
    arguments: dict[str, Any] = {name: 0}
    with pytest.raises(ConfigError, match=f"{name}=0 must be a whole number of at least 1"):
        SharedDecoder.load(toy_folder(Toy()), **arguments)


def test_many_threads_with_cancellations(load_toy: LoadToy, toy_folder: ToyFolder) -> None:
    """Each answer is the one of its single run, or the beginning of it when it was cancelled."""
    plain = load_toy(Toy())
    expected = [plain.generate([1, 2], seed=seed, **LONG).token_ids for seed in range(10)]

    def run(number: int) -> bool:
        with shared.stream_tokens([1, 2], seed=number % 10, **LONG) as stream:
            taken: list[int] = []
            for token in stream:
                taken.append(token)
                if number % 3 == 0 and len(taken) > number % 20:
                    break
        whole = number % 3 or len(taken) == 30
        return taken == list(expected[number % 10][: None if whole else len(taken)])

    with (
        SharedDecoder.load(toy_folder(Toy()), num_slots=4, num_threads=1) as shared,
        ThreadPoolExecutor(12) as pool,
    ):
        assert all(pool.map(run, range(120)))
        assert shared.generate([1], max_new_tokens=1).token_ids
        assert shared.scheduler.snapshot().waiting == 0
