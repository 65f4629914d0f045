"""What the rounds of a lane draft: how many tokens, and where prompt lookup finds them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from spec_compile.manifest import Manifest
from spec_compile.runtime.adaptive import Planner
from spec_compile.runtime.prompt_lookup import NOTHING, NgramIndex
from spec_compile.runtime.requests import GenerationOptions, lookup_sizes
from spec_compile.runtime.slot_plan import Call
from spec_compile.runtime.slots import Slots


class LaneKind(Enum):
    """Requests of one kind share calls; a mixture of kinds would change what a seed gives."""

    TARGET_ONLY = "target only"
    SPECULATIVE = "speculative"
    ADAPTIVE = "adaptive"


def kind_of(options: GenerationOptions) -> LaneKind:
    """The lane that serves checked options."""
    if not options.speculative:
        return LaneKind.TARGET_ONLY
    return LaneKind.ADAPTIVE if options.adaptive else LaneKind.SPECULATIVE


class SlotDrafting:
    """Chooses the number of draft tokens of each call; with prompt lookup, also the tokens.

    Args:
        manifest: the bundle's contract.
        slots: the rows; read.
        kind: which requests sit in them.
        proposals: [N, k] draft tokens, written if the bundle looks them up.
    """

    def __init__(
        self, manifest: Manifest, slots: Slots, kind: LaneKind, proposals: NDArray[np.int64]
    ) -> None:
        self._manifest, self._slots, self._proposals = manifest, slots, proposals
        self._is_adaptive = kind is LaneKind.ADAPTIVE
        self._looks_up = (
            manifest.config.lookup_sizes is not None and kind is not LaneKind.TARGET_ONLY
        )
        self._indices: dict[int, NgramIndex] = {}  # by slot
        self._found = [0] * len(slots)  # draft tokens that each row can propose
        self._planners: dict[int, Planner] = {}  # by number of rows, which decides what calls cost

    def enter(self, slot: int, options: GenerationOptions) -> None:
        """Seat a request."""
        sizes = lookup_sizes(options, self._manifest) if self._looks_up else None
        if sizes is not None:
            self._indices[slot] = NgramIndex(*sizes)

    def leave(self, slot: int) -> None:
        """Forget what a row's text says."""
        self._indices.pop(slot, None)

    def move(self, source: int, target: int) -> None:
        """Let the request of slot `source` go on in the free slot `target`."""
        if source in self._indices:
            self._indices[target] = self._indices.pop(source)

    def choose(self, call: Call, emitting: Sequence[int], most: int, *, any_length: bool) -> int:
        """The number of draft tokens of a call; fills `proposals` if they are looked up.

        Args:
            call: what will be fed.
            emitting: its slots that will emit.
            most: draft tokens that it may verify.
            any_length: whether it may verify less.
        """
        if self._looks_up:
            self._look_up(call, emitting, most)
        else:
            for slot in emitting:
                self._found[slot] = most
        if not any_length:
            return most
        available = [self._found[slot] for slot in emitting]
        if self._is_adaptive and emitting:
            return self._planner(len(emitting)).choose(available)
        return max(available, default=0)

    def proposed(self, slot: int, length: int) -> int:
        """Draft tokens that a row proposed in a call over `length` of them."""
        return min(self._found[slot], length)

    def learn(
        self,
        length: int,
        proposed: Sequence[int],
        emitted: Sequence[int],
        ms: float,
        *,
        usual: bool,
    ) -> None:
        """Take a call's outcome; see `Planner.observe`."""
        if self._is_adaptive and emitted:
            self._planner(len(emitted)).observe(length, proposed, emitted, ms, usual=usual)

    def _planner(self, rows: int) -> Planner:
        if rows not in self._planners:
            self._planners[rows] = Planner(self._manifest.config.num_speculative_tokens)
        return self._planners[rows]

    def _look_up(self, call: Call, emitting: Sequence[int], most: int) -> None:
        self._proposals[call.first : call.last] = NOTHING
        for slot, end in call.ends.items():
            self._read(slot, end)
        for slot in emitting:
            self._read(slot, int(self._slots.committed[slot]))
            found = self._indices[slot].propose(most)
            self._found[slot] = len(found)
            self._proposals[slot, : len(found)] = found

    def _read(self, slot: int, end: int) -> None:
        """Read a row's text up to `end`: a long prompt takes long, so by the parts that are fed."""
        index = self._indices[slot]
        index.extend(self._slots.history[slot, len(index) : end].tolist())
