"""Calls over slots at the edges of the caches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spec_compile.errors import BackendError
from spec_compile.runtime.api import Decoder
from spec_compile.runtime.lane import Lane
from spec_compile.runtime.requests import GenerationOptions
from spec_compile.runtime.slot_graphs import SlotGraphs
from spec_compile.runtime.slot_plan import Call
from spec_compile.runtime.slots import Slots
from spec_compile.runtime.ticket import SharedRow, Ticket
from tests.helpers.gate import GatedEngine
from tests.helpers.toy_bundle import Toy

LoadToy = Callable[[Toy], Decoder]
CAPACITY = 24


@pytest.mark.parametrize("fusion", ["verify", "step"])
def test_a_wide_call_when_others_are_near_the_capacity(load_toy: LoadToy, fusion: str) -> None:
    """A row that runs, and one that stands still in its prompt, beside a prompt of six tokens."""
    toy = Toy(fusion=fusion, max_length=CAPACITY)
    decoder, slots = load_toy(toy), Slots(3, CAPACITY)
    graphs = SlotGraphs(decoder.engine, decoder.manifest, slots, speculative=True)
    prompts = [[1 + (slot + i) % 12 for i in range(n)] for slot, n in enumerate((22, 23, 6))]
    for slot, prompt in enumerate(prompts):
        slots.enter(slot, prompt, GenerationOptions(), seed=0)
    wanted = [toy.target.greedy(prompt, 2) for prompt in prompts]

    graphs.run(Call(0, 1, ends={0: 22}))
    assert graphs.output_tokens[0, 0] == wanted[0][0]
    slots.start(0)
    slots.commit(0, wanted[0][:1])
    graphs.run(Call(1, 2, ends={1: 22}))
    graphs.run(Call(0, 3, (0,), {2: 6}))
    assert graphs.output_tokens[0, 0] == wanted[0][1]
    assert graphs.output_tokens[2, 0] == wanted[2][0]
    assert slots.fed[1] == CAPACITY - 6  # what the wide call has overwritten is fed again
    graphs.run(Call(1, 2, ends={1: 23}))
    assert graphs.output_tokens[1, 0] == wanted[1][0]


def test_a_row_that_failed_leaves_nothing_in_its_caches(load_toy: LoadToy) -> None:
    """What is not a number there would spoil the next request: zero times NaN is NaN."""
    decoder = load_toy(Toy())
    engine = GatedEngine(decoder.engine)
    lane = Lane(engine, decoder.manifest, 1, 64)
    caches = [cache for graph in lane._graphs._graphs for cache in graph.caches]
    row: dict[str, Any] = {"budget": 20, "budget_reason": "length", "eos_token_ids": ()}
    shared = SharedRow(**row, stops=(), tokenizer=None, num_speculative_tokens=3)
    ticket = Ticket(shared, [1, 2], GenerationOptions(temperature=0.5), 0)
    lane.enter(ticket)
    lane.step()
    assert all(cache.any() for cache in caches)
    engine.fails_at = 0.5
    assert lane.step() == [ticket]
    assert isinstance(ticket.error, BackendError)
    assert not any(cache.any() for cache in caches)
