"""Spec-Verification: what is near the target's best token stays; with beta 1 only that itself."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_compile.acceptance import RULES, rule_for
from spec_compile.acceptance.specdec import SpecDec
from spec_compile.config import SpecConfig
from spec_compile.errors import ConfigError
from spec_compile.runtime.acceptance import BatchRule, batched, single
from tests.acceptance.graphs import Array, Graph


def run(rule: SpecDec, tokens: Array, scores: Array) -> tuple[Array, Array]:
    output, count = rule(torch.from_numpy(tokens), None, torch.from_numpy(scores), None)
    return output.numpy(), count.numpy()


def twin(rule: SpecDec) -> BatchRule:
    return batched(partial(single.specdec, beta=rule.beta, tau=rule.tau))


def by_the_paper(rule: SpecDec, token: int, logits: Array) -> bool:
    """With log-probabilities: at least the beta-th largest, and at most tau from the largest."""
    logs = logits.astype(np.float64) - np.logaddexp.reduce(logits.astype(np.float64))
    ordered = np.sort(logs)[::-1]
    bar = ordered[min(rule.beta, len(ordered)) - 1]
    return bool(logs[token] >= bar and ordered[0] - logs[token] <= rule.tau + 1e-9)


@pytest.mark.parametrize("beta, tau", [(2, 1.0), (2, 0.0), (3, 2.0), (5, 3.0)])
def test_accepts_what_the_paper_s_two_conditions_do(beta: int, tau: float) -> None:
    """Every draft of two tokens over every two rows of logits of 0, 1 and 3, three tokens each."""
    rows = [np.array(row, dtype=np.float32) for row in itertools.product([0, 1, 3], repeat=3)]
    rule = SpecDec(beta, tau)
    for first, second in itertools.product(rows, rows[::5]):
        scores = np.array([[first, second, first]] * 9)
        tokens = np.array(list(itertools.product(range(3), repeat=2)))
        output, count = run(rule, tokens, scores)
        for draft, emitted, length in zip(tokens, output, count, strict=True):
            passed = [by_the_paper(rule, int(t), r) for t, r in zip(draft, scores[0], strict=False)]
            accepted = passed.index(False) if False in passed else 2
            following = int(scores[0][accepted].argmax())
            assert emitted.tolist() == [*draft[:accepted], following, *[-1] * (2 - accepted)]
            assert length == accepted + 1


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    vocab_size=st.sampled_from([2, 65, 512]),
    num_drafted=st.integers(0, 5),
    dtype=st.sampled_from([np.float32, np.float16]),
    beta=st.integers(1, 9),
    tau=st.sampled_from([0.0, 1.0, 2.5, 1e30]),
)
def test_equals_its_twin(
    seed: int, vocab_size: int, num_drafted: int, dtype: type[np.floating], beta: int, tau: float
) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(-4, 4, (6, num_drafted + 1, vocab_size)).astype(dtype)
    tokens = scores[:, :num_drafted].argmax(-1)
    tokens = np.where(
        rng.random(tokens.shape) < 0.6, rng.integers(-1, vocab_size, tokens.shape), tokens
    )
    rule = SpecDec(beta, tau)
    output, count = run(rule, tokens, scores)
    expected, expected_count = twin(rule)(tokens, None, scores, None)
    np.testing.assert_array_equal(output, expected)
    np.testing.assert_array_equal(count, expected_count)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), tau=st.sampled_from([0.0, 3.0, 1e30]))
def test_beta_of_one_is_the_greedy_rule_ties_too(seed: int, tau: float) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 2, (8, 4, 7)).astype(np.float32)
    tokens = rng.integers(0, 7, (8, 3))
    output, count = run(SpecDec(1, tau), tokens, scores)
    inputs = torch.from_numpy(tokens), None, torch.from_numpy(scores), None
    expected, expected_count = RULES["greedy"](*inputs)
    np.testing.assert_array_equal(output, expected.numpy())
    np.testing.assert_array_equal(count, expected_count.numpy())


def test_the_graph_gives_the_same_tokens() -> None:
    rule = SpecDec(3, 2.0)

    class Verify(torch.nn.Module):
        def forward(
            self, draft_tokens: torch.Tensor, logits: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            return rule(draft_tokens, None, logits, None)

    examples = {
        "draft_tokens": torch.zeros(2, 3, dtype=torch.int64),
        "logits": torch.zeros(2, 4, 700),
    }
    graph = Graph(Verify(), examples)
    rng = np.random.default_rng(4)
    logits = rng.integers(0, 9, (40, 4, 700)).astype(np.float32)
    logits[:, :, 20:] -= 8
    tokens = rng.integers(0, 20, (40, 3))
    output, count = graph(draft_tokens=tokens, logits=logits)
    expected, expected_count = twin(rule)(tokens, None, logits, None)
    np.testing.assert_array_equal(output, expected)
    np.testing.assert_array_equal(count, expected_count)
    assert len(set(count.tolist())) > 2


def test_infinite_and_absent_numbers_give_tokens_in_range() -> None:
    for value in (np.nan, np.inf, -np.inf):
        scores = np.full((1, 3, 300), value, dtype=np.float32)
        output, count = run(SpecDec(), np.full((1, 2), 7), scores)
        assert output.max() < 300 and 1 <= count[0] <= 3
    masked = np.array([[[0, -np.inf, -np.inf], [1, 0, 0]]], dtype=np.float32)
    assert run(SpecDec(), np.array([[1]]), masked)[0].tolist() == [[0, -1]]


def test_contract() -> None:
    rule = RULES["specdec"]
    assert isinstance(rule, SpecDec) and (rule.beta, rule.tau) == (5, 3.0)
    assert not rule.exact and not rule.samples and not rule.uses_draft_probs
    assert SpecDec(beta=1).exact
    assert rule.uniforms_shape(1, 4) == (0,)
    with pytest.raises(ConfigError, match="takes one draft per round, not 2"):
        rule.uniforms_shape(2, 4)


@pytest.mark.parametrize("beta, tau", [(0, 1.0), (2, -0.5), (2, float("nan")), (2, float("inf"))])
def test_unsound_settings_are_refused(beta: int, tau: float) -> None:
    with pytest.raises(ConfigError, match="specdec needs beta >= 1"):
        SpecDec(beta, tau)


def test_a_configuration_brings_its_settings() -> None:
    rule = rule_for(SpecConfig(acceptance="specdec", specdec_beta=1, specdec_tau=0.5))
    assert isinstance(rule, SpecDec) and (rule.beta, rule.tau, rule.exact) == (1, 0.5, True)
    plain = rule_for(SpecConfig(acceptance="specdec"))
    assert isinstance(plain, SpecDec) and (plain.beta, plain.tau) == (5, 3.0)
    assert rule_for(SpecConfig(acceptance="match")) is RULES["match"]
