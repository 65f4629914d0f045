"""Rules that take drafts of any length: what lies behind the draft's own part is not looked at."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_compile.acceptance import RULES

K, VOCAB, ROWS = 4, 6, 8
ANY_LENGTH = [name for name, rule in RULES.items() if rule.symbolic_length]


def test_which_they_are() -> None:
    assert ANY_LENGTH == ["greedy", "rejection", "match", "lenient", "specdec"]


@pytest.mark.parametrize("name", ANY_LENGTH)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), length=st.integers(1, K))
def test_takes_a_part_of_longer_tensors(name: str, seed: int, length: int) -> None:
    rng = np.random.default_rng(seed)

    def laws(count: int) -> torch.Tensor:
        drawn = rng.multinomial(512, np.full(VOCAB, 1 / VOCAB), (ROWS, count)) / 512
        return torch.from_numpy(drawn.astype(np.float32))

    rule, draft, target = RULES[name], laws(K), laws(length + 1)
    tokens = torch.from_numpy(rng.integers(0, VOCAB, (ROWS, length)))
    uniforms = torch.from_numpy(rng.random((ROWS, K + 1), dtype=np.float32))
    expected = rule(tokens, draft[:, :length], target, uniforms[:, : length + 1])
    draft[:, length:] = torch.nan
    found = rule(tokens, draft, target, uniforms)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", ANY_LENGTH)
def test_no_draft_token_is_plain_decoding(name: str) -> None:
    """With room for k laws, none of which is there."""
    target = torch.eye(VOCAB)[[2, 5, 0]][:, None]
    none = torch.zeros(3, 0, dtype=torch.int64)
    draft = torch.full((3, K, VOCAB), torch.nan)
    tokens, count = RULES[name](none, draft, target, torch.full((3, K + 1), 0.5))
    assert tokens.tolist() == [[2], [5], [0]]
    assert count.tolist() == [1, 1, 1]


@pytest.mark.parametrize("name", ["greedy", "match", "specdec"])
def test_minus_one_proposes_nothing(name: str) -> None:
    target = torch.eye(VOCAB)[torch.tensor([[3, 1, 2]])]
    uniforms = torch.full((1, 3), 0.5)
    for drafted, expected in (([-1, -1], [3, -1, -1]), ([3, -1], [3, 1, -1]), ([3, 1], [3, 1, 2])):
        tokens, _ = RULES[name](torch.tensor([drafted]), None, target, uniforms)
        assert tokens.tolist() == [expected]
