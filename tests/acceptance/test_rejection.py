"""The rejection rule: equal to its NumPy twin, strict, and safe at the ends of the numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_compile.acceptance import RULES
from spec_compile.errors import ConfigError
from spec_compile.runtime.acceptance import RULES as RULE_TWINS
from tests.acceptance.graphs import Array

RULE = RULES["rejection"]
LARGEST_UNIFORM = 1 - 2**-24


def run(tokens: Array, draft: Array, target: Array, uniforms: Array) -> tuple[Array, Array]:
    arrays = (torch.from_numpy(np.asarray(a)) for a in (tokens, draft, target, uniforms))
    output, count = RULE(*arrays)
    return output.numpy(), count.numpy()


def single(draft: list[float], target: list[float], token: int, *uniforms: float) -> list[int]:
    """One row, k = 1, the target's law the same at both positions: the emitted tokens."""
    output, count = run(
        np.array([[token]]),
        np.array([[draft]], dtype=np.float32),
        np.array([[target, target]], dtype=np.float32),
        np.array([uniforms], dtype=np.float32),
    )
    return [int(value) for value in output[0, : count[0]]]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    vocab_size=st.sampled_from([2, 5, 64, 300, 512]),
    num_drafted=st.integers(0, 5),
)
def test_equals_its_twin_where_sums_are_exact(seed: int, vocab_size: int, num_drafted: int) -> None:
    """Laws and uniforms on grids of powers of two: no rounding, so no token may differ."""
    rng = np.random.default_rng(seed)
    target = rng.multinomial(512, rng.dirichlet(np.full(vocab_size, 0.3)), (16, num_drafted + 1))
    draft = rng.multinomial(512, rng.dirichlet(np.full(vocab_size, 0.3)), (16, num_drafted))
    draft[::3] = target[::3, :num_drafted]
    tokens = rng.integers(0, vocab_size, (16, num_drafted))
    tokens[::2] = draft[::2].argmax(-1)
    uniforms = (rng.integers(0, 512, (16, num_drafted + 1)) / 512).astype(np.float32)
    laws = (draft / 512).astype(np.float32), (target / 512).astype(np.float32)
    output, count = run(tokens, *laws, uniforms)
    expected, expected_count = RULE_TWINS["rejection"](tokens, *laws, uniforms)
    np.testing.assert_array_equal(output, expected)
    np.testing.assert_array_equal(count, expected_count)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), num_drafted=st.integers(0, 4))
def test_every_emitted_token_is_possible(seed: int, num_drafted: int) -> None:
    rng = np.random.default_rng(seed)
    target = rng.dirichlet(np.full(90, 0.05), (8, num_drafted + 1)).astype(np.float32)
    draft = rng.dirichlet(np.full(90, 0.05), (8, num_drafted)).astype(np.float32)
    target[rng.random(target.shape) < 0.3] = 0
    target[..., 0] += 0.1
    tokens = rng.integers(0, 90, (8, num_drafted))
    choices = [0.0, 0.5, LARGEST_UNIFORM]
    uniforms = rng.choice(choices, (8, num_drafted + 1)).astype(np.float32)
    output, count = run(tokens, draft, target, uniforms)
    for row in range(8):
        assert 1 <= count[row] <= num_drafted + 1
        assert (output[row, count[row] :] == -1).all()
        for position in range(count[row]):
            assert target[row, position, output[row, position]] > 0


def test_the_comparison_is_strict() -> None:
    assert single([0.5, 0.5], [0.25, 0.75], 0, 0.5, 0.0) == [1]
    assert single([0.5, 0.5], [0.25, 0.75], 0, 0.49999, 0.0) == [0, 0]


def test_a_forbidden_token_is_not_accepted_at_uniform_zero() -> None:
    assert single([1.0, 0.0], [0.0, 1.0], 0, 0.0, 0.0) == [1]


def test_a_token_outside_the_draft_s_law_is_accepted_if_the_target_allows_it() -> None:
    assert single([0.0, 1.0], [0.5, 0.5], 0, LARGEST_UNIFORM, 0.9) == [0, 1]


def test_a_residual_without_mass_falls_back_to_the_target() -> None:
    """Sums to less than the target's at one token by rounding: rejected, nothing left over."""
    draft, target = [0.5, 0.5], [0.49999997, 0.5]
    assert single(draft, target, 0, LARGEST_UNIFORM, 0.75) == [1]
    assert single(draft, target, 0, LARGEST_UNIFORM, 0.25) == [0]


def test_the_residual_excludes_what_the_draft_over_proposed() -> None:
    for uniform in (0.0, 0.3, 0.7, LARGEST_UNIFORM):
        assert single([0.8, 0.1, 0.1], [0.2, 0.1, 0.7], 0, 0.9, uniform) == [2]


def test_rows_accept_different_lengths() -> None:
    half = np.full((3, 2, 2), 0.5, dtype=np.float32)
    target = np.full((3, 3, 2), 0.5, dtype=np.float32)
    target[0, 0] = [0, 1]
    target[1, 1] = [0, 1]
    output, count = run(np.zeros((3, 2), int), half, target, np.zeros((3, 3), np.float32))
    np.testing.assert_array_equal(output, [[1, -1, -1], [0, 1, -1], [0, 0, 0]])
    np.testing.assert_array_equal(count, [1, 2, 3])


@pytest.mark.parametrize("field", ["draft", "target"])
def test_not_a_number_gives_tokens_in_range(field: str) -> None:
    laws = {"draft": np.full((2, 2, 9), 1 / 9), "target": np.full((2, 3, 9), 1 / 9)}
    laws[field][0] = np.nan
    output, count = run(np.ones((2, 2), int), laws["draft"], laws["target"], np.full((2, 3), 0.4))
    assert output.max() < 9 and output.min() >= -1
    np.testing.assert_array_equal(output[1], [1, 1, 3])
    assert count[1] == 3


def test_large_vocabulary_from_half_precision() -> None:
    """Laws of float16 logits over 150,000 tokens: every token has mass, twins agree."""
    rng = np.random.default_rng(9)
    logits = rng.standard_normal((2, 3, 150_000)).astype(np.float16) * np.float16(4)
    target = torch.from_numpy(logits).float().softmax(-1).numpy()
    draft = torch.from_numpy(logits[:, :2]).float().mul(0.9).softmax(-1).numpy()
    tokens = draft.argmax(-1)
    for uniform in (0.0, 0.37, LARGEST_UNIFORM):
        output, count = run(tokens, draft, target, np.full((2, 3), uniform, dtype=np.float32))
        for row in range(2):
            emitted = output[row, : count[row]]
            assert (target[row, np.arange(count[row]), emitted] > 0).all()


def test_contract() -> None:
    assert RULE.name == "rejection" and RULE.exact and RULE.uses_draft_probs
    assert RULE.uniforms_shape(1, 4) == (5,)
    assert RULE.uniforms_shape(1, 0) == (1,)
    with pytest.raises(ConfigError, match="takes one draft per round, not 3"):
        RULE.uniforms_shape(3, 4)
    with pytest.raises(TypeError, match="needs draft_probs and uniforms"):
        RULE(torch.zeros(1, 1, dtype=torch.int64), None, torch.ones(1, 2, 3), None)
