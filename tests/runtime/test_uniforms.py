"""Random numbers of a row, and what a seed means where they belong to output tokens."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_compile.runtime.api import Decoder
from spec_compile.runtime.uniforms import UniformStream
from tests.helpers.toy_bundle import Toy

LoadToy = Callable[[Toy], Decoder]
PROMPTS = [[1], [2, 3, 4, 5, 6], [9, 9], [12, 1, 12]]


def drawn(seed: int, count: int) -> list[float]:
    numbers = np.zeros(count, dtype=np.float32)
    UniformStream(seed).fill(numbers)
    return numbers.tolist()


@settings(max_examples=100, deadline=None)
@given(width=st.integers(1, 6), steps=st.lists(st.integers(0, 6), max_size=8))
def test_number_i_belongs_to_token_i_whatever_rounds_emit(width: int, steps: list[int]) -> None:
    stream, position = UniformStream(3), 0
    whole = drawn(3, width + sum(steps))
    numbers = np.zeros(width, dtype=np.float32)
    for step in [0, *(min(step, width) for step in steps)]:
        position += step
        stream.fill_at(numbers, position)
        assert numbers.tolist() == whole[position : position + width]


def test_a_stream_goes_on_in_parts() -> None:
    stream, parts = UniformStream(5), []
    for count in (3, 1, 4):
        numbers = np.zeros(count, dtype=np.float32)
        stream.fill(numbers)
        parts += numbers.tolist()
    assert parts == drawn(5, 8) != drawn(6, 8)


@pytest.mark.parametrize("draft", ["self", "good", "wrong"])
@pytest.mark.parametrize("k,fusion", [(1, "verify"), (4, "verify"), (3, "step")])
def test_a_seed_means_the_same_tokens_whatever_proposes(
    load_toy: LoadToy, draft: str, k: int, fusion: str
) -> None:
    """By the rule match: those of plain decoding, for any draft, any k, in any batch."""
    decoder = load_toy(Toy(fusion=fusion, k=k, draft=draft, acceptance="match"))
    plain = load_toy(Toy(acceptance="match"))
    together = decoder.generate(PROMPTS, temperature=1.0, seed=7, max_new_tokens=30)
    for row, prompt in enumerate(PROMPTS):
        alone = plain.generate(
            prompt, temperature=1.0, seed=7 + row, max_new_tokens=30, speculative=False
        )
        assert together[row].token_ids == alone.token_ids
    lengths = {result.stats.num_rounds for result in together}
    assert draft == "wrong" or min(lengths) < max(len(r.token_ids) for r in together)
