"""The plan of a step: who is fed, in which call."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spec_compile.runtime.slot_plan import Call, Prompt, plan_calls


def plan(
    running: list[int], prompts: list[Prompt], most_tokens: int = 64, num_drafted: int = 4
) -> list[Call]:
    return plan_calls(running, prompts, most_tokens=most_tokens, window=2, num_drafted=num_drafted)


def test_nothing_to_do() -> None:
    assert plan([], []) == []


def test_rounds_alone_are_one_call_over_their_range() -> None:
    assert plan([1, 4], []) == [Call(1, 5, (1, 4))]


def test_a_long_prompt_gets_a_call_of_its_own() -> None:
    calls = plan([0, 1, 2], [Prompt(3, 0, 200)])
    assert calls == [Call(0, 3, (0, 1, 2)), Call(3, 4, ends={3: 64})]


def test_a_short_prompt_joins_the_rounds() -> None:
    assert plan([0, 1], [Prompt(2, 0, 3)]) == [Call(0, 3, (0, 1), {2: 3})]


def test_prompts_that_come_together_go_in_together() -> None:
    prompts = [Prompt(slot, 0, 5) for slot in range(3)]
    assert plan([], prompts) == [Call(0, 3, ends={0: 5, 1: 5, 2: 5})]


def test_the_oldest_prompt_is_fed_first_and_the_rest_waits() -> None:
    calls = plan([], [Prompt(2, 30, 90), Prompt(0, 0, 10)], most_tokens=40)
    assert calls == [Call(2, 3, ends={2: 70})]


PLANS = st.integers(1, 6).flatmap(
    lambda n: st.tuples(
        st.lists(st.sampled_from(["run", "idle", "prompt"]), min_size=n, max_size=n),
        st.lists(st.tuples(st.integers(0, 90), st.integers(1, 90)), min_size=n, max_size=n),
        st.integers(2, 80),
    )
)


@given(PLANS)
def test_invariants(case: tuple[list[str], list[tuple[int, int]], int]) -> None:
    kinds, sizes, most_tokens = case
    running = [slot for slot, kind in enumerate(kinds) if kind == "run"]
    prompts = [
        Prompt(slot, sizes[slot][0], sum(sizes[slot]))
        for slot, kind in enumerate(kinds)
        if kind == "prompt"
    ]
    calls = plan(running, prompts, most_tokens)
    assert sorted(slot for call in calls for slot in call.running) == running
    fed = {slot: end for call in calls for slot, end in call.ends.items()}
    assert len(fed) == sum(len(call.ends) for call in calls)
    parts = [fed[p.slot] - p.fed for p in prompts if p.slot in fed]
    assert all(part > 0 for part in parts)
    assert sum(parts) == min(most_tokens, sum(p.length - p.fed for p in prompts))
    assert [p.slot for p in prompts][: len(fed)] == [p.slot for p in prompts if p.slot in fed]
    for call in calls:
        assert all(call.first <= slot < call.last for slot in call.slots)
        # A running row never stands still: what it would lose is never fed again.
        standing = set(range(call.first, call.last)) - set(call.slots)
        assert standing.isdisjoint(running)
