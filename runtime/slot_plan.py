"""Which calls a step makes: prompts that have come in beside rows that go on.

A call over several rows pads each of them to the longest, so a prompt beside short rounds wastes
work; a call of its own reads all weights once more. The plan takes what costs less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# What a call costs beside its tokens, in tokens: with SmolLM2-135M on a CPU, reading the weights
# takes as long as computing eight tokens more.
CALL_COST = 8


@dataclass(frozen=True)
class Call:
    """One call of the graphs over the slots `first` to `last` - 1.

    Args:
        first: the lowest slot of the call.
        last: one above the highest.
        running: slots that do a round.
        ends: slot -> tokens of its prompt that the caches hold after the call.
    """

    first: int
    last: int
    running: tuple[int, ...] = ()
    ends: Mapping[int, int] = field(default_factory=dict)

    @property
    def slots(self) -> tuple[int, ...]:
        """All slots that are fed; others in the range stand still."""
        return (*self.running, *self.ends)

    @property
    def is_full(self) -> bool:
        """Whether every slot of the range does a round."""
        return len(self.running) == self.last - self.first

    def alone(self, slot: int) -> Call:
        """The part of this call that is about one slot."""
        if slot in self.ends:
            return Call(slot, slot + 1, ends={slot: self.ends[slot]})
        return Call(slot, slot + 1, running=(slot,))


@dataclass(frozen=True)
class Prompt:
    """A prompt on its way into the caches: `fed` of its `length` tokens are there."""

    slot: int
    fed: int
    length: int


def plan_calls(
    running: Sequence[int],
    prompts: Sequence[Prompt],
    *,
    most_tokens: int,
    window: int,
    num_drafted: int,
) -> list[Call]:
    """The calls of one step: every running row does a round, prompts go on in order of arrival.

    Args:
        running: slots whose prompt has been fed.
        prompts: the others, oldest first.
        most_tokens: of prompts, all together: what a running row waits for at most.
        window: tokens that a round feeds again.
        num_drafted: draft tokens that a call computes per row.

    Returns:
        First the call that holds the running rows, if any, then calls of single prompts: a running
        row never stands still in a call.
    """
    if not prompts:
        return [Call(min(running), max(running) + 1, tuple(running))] if running else []
    ends: dict[int, int] = {}
    lengths: dict[int, int] = {}
    for prompt in prompts:
        taken = min(prompt.length - prompt.fed, most_tokens - sum(lengths.values()))
        if taken > 0:
            ends[prompt.slot], lengths[prompt.slot] = prompt.fed + taken, taken
    by_length = sorted(lengths, key=lambda slot: lengths[slot])
    costs = [
        _cost(running, by_length[:joined], by_length[joined:], lengths, window, num_drafted)
        for joined in range(len(by_length) + 1)
    ]
    joined = costs.index(min(costs))
    together, apart = by_length[:joined], [slot for slot in ends if slot in by_length[joined:]]
    calls = [Call(slot, slot + 1, ends={slot: ends[slot]}) for slot in apart]
    if running or together:
        seats = [*running, *together]
        joint = {slot: ends[slot] for slot in together}
        calls.insert(0, Call(min(seats), max(seats) + 1, tuple(running), joint))
    return calls


def _cost(
    running: Sequence[int],
    together: Sequence[int],
    apart: Sequence[int],
    lengths: Mapping[int, int],
    window: int,
    num_drafted: int,
) -> int:
    cost = sum(CALL_COST + lengths[slot] + num_drafted for slot in apart)
    seats = [*running, *together]
    if seats:
        width = max([lengths[slot] for slot in together] + [window] * bool(running))
        cost += CALL_COST + (max(seats) + 1 - min(seats)) * (width + num_drafted)
    return cost
