"""The greedy rule: the output is the target's own greedy path, whatever the draft says."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_compile.acceptance import RULES
from spec_compile.errors import ConfigError
from spec_compile.runtime.acceptance import RULES as RULE_TWINS
from tests.acceptance.graphs import Array

RULE = RULES["greedy"]


def run(tokens: Array, scores: Array) -> tuple[Array, Array]:
    output, count = RULE(torch.from_numpy(tokens), None, torch.from_numpy(scores), None)
    return output.numpy(), count.numpy()


def test_every_draft_leads_to_the_target_s_greedy_path() -> None:
    """All drafts of 3 tokens over 3 ids, the target's rows depending on the draft's prefix."""
    table = np.random.default_rng(0).standard_normal((3, 3, 3, 3, 3)).astype(np.float32)
    path: list[int] = []
    for _ in range(4):
        prefix = tuple(path) + (0,) * (3 - len(path))
        path.append(int(table[(len(path), *prefix)].argmax()) if len(path) < 3 else -1)
    drafts = np.array(list(itertools.product(range(3), repeat=3)))
    rows = [[table[(i, *draft[:i], *(0,) * (3 - i))] for i in range(3)] for draft in drafts]
    last = np.zeros((len(drafts), 1, 3), dtype=np.float32)
    output, count = run(drafts, np.concatenate([np.array(rows), last], axis=1))
    for draft, emitted, length in zip(drafts, output, count, strict=True):
        agreed = next((i for i in range(3) if draft[i] != path[i]), 3)
        assert length == agreed + 1
        assert list(emitted[: min(length, 3)]) == path[: min(length, 3)]
        assert (emitted[length:] == -1).all()


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    vocab_size=st.sampled_from([2, 65, 512]),
    num_drafted=st.integers(0, 5),
    dtype=st.sampled_from([np.float32, np.float16]),
)
def test_equals_its_twin(
    seed: int, vocab_size: int, num_drafted: int, dtype: type[np.floating]
) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(-4, 4, (6, num_drafted + 1, vocab_size)).astype(dtype)
    tokens = scores[:, :num_drafted].argmax(-1)
    tokens[rng.random(tokens.shape) < 0.3] = 0
    output, count = run(tokens, scores)
    expected, expected_count = RULE_TWINS["greedy"](tokens, None, scores, None)
    np.testing.assert_array_equal(output, expected)
    np.testing.assert_array_equal(count, expected_count)


def test_of_equals_only_the_lowest_id_is_accepted() -> None:
    scores = np.array([[[1, 3, 3], [9, 0, 0]]] * 2, dtype=np.float32)
    output, count = run(np.array([[1], [2]]), scores)
    np.testing.assert_array_equal(output, [[1, 0], [1, -1]])
    np.testing.assert_array_equal(count, [2, 1])


def test_not_a_number_gives_tokens_in_range() -> None:
    scores = np.full((1, 3, 300), np.nan, dtype=np.float32)
    output, count = run(np.zeros((1, 2), dtype=np.int64), scores)
    assert output.max() < 300 and 1 <= count[0] <= 3


def test_contract() -> None:
    assert RULE.name == "greedy" and RULE.exact and not RULE.uses_draft_probs
    assert RULE.uniforms_shape(1, 4) == (0,)
    with pytest.raises(ConfigError, match="takes one draft per round, not 2"):
        RULE.uniforms_shape(2, 4)


def test_rules_know_their_names() -> None:
    assert {name: rule.name for name, rule in RULES.items()} == {n: n for n in RULES}
    assert set(RULE_TWINS) == set(RULES)
