"""Sampling transforms and the inverse CDF, against NumPy twins and transformers' warpers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from spec_compile import sampling as module
from spec_compile.runtime import sampling as twins
from spec_compile.sampling import Sampling, argmax, process_logits, sample
from tests.acceptance.graphs import OPTIONS, Array, option_arrays

LARGEST_UNIFORM = 1 - 2**-24
Options = tuple[float, int, float, float]
OFF: Options = (1.0, 0, 1.0, 0.0)

options = st.tuples(
    st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.9]),
    st.sampled_from([0, 1, 2, 5, 40, 1000]),
    st.sampled_from([1.0, 0.95, 0.5, 0.05]),
    st.sampled_from([0.0, 0.05, 0.4, 1.0]),
)


def torch_sampling(rows: list[Options]) -> Sampling:
    return Sampling(*(torch.from_numpy(option_arrays(rows)[name]) for name in OPTIONS))


def twin_sampling(rows: list[Options]) -> twins.Sampling:
    return twins.Sampling(*(option_arrays(rows)[name] for name in OPTIONS))


def process(logits: Array, rows: list[Options]) -> Array:
    probs: Array = process_logits(torch.from_numpy(logits), torch_sampling(rows)).numpy()
    return probs


def random_logits(seed: int, *shape: int, spread: float = 3.0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * spread).astype(np.float32)


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(options, min_size=1, max_size=4),
    vocab_size=st.sampled_from([1, 2, 7, 64, 300, 512]),
    seed=st.integers(0, 2**32 - 1),
)
def test_process_logits_equals_its_twin(rows: list[Options], vocab_size: int, seed: int) -> None:
    logits = random_logits(seed, len(rows), 3, vocab_size)
    expected = twins.process_logits(logits, twin_sampling(rows))
    np.testing.assert_allclose(process(logits, rows), expected, atol=2e-6)


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(options, min_size=1, max_size=3), seed=st.integers(0, 2**32 - 1))
def test_ties_equal_the_twin(rows: list[Options], seed: int) -> None:
    """Logits from four values: every cut falls among equals, and the lowest ids stay."""
    logits = np.random.default_rng(seed).integers(0, 4, (len(rows), 2, 40)).astype(np.float32)
    expected = twins.process_logits(logits, twin_sampling(rows))
    probs = process(logits, rows)
    np.testing.assert_array_equal(probs > 0, expected > 0)
    np.testing.assert_allclose(probs, expected, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(option=options.filter(lambda o: o[0] > 0), seed=st.integers(0, 2**32 - 1))
def test_process_logits_equals_transformers(option: Options, seed: int) -> None:
    temperature, top_k, top_p, min_p = option
    logits = random_logits(seed, 2, 1, 200)
    scores = torch.from_numpy(logits[:, 0])
    ids = torch.LongTensor([[0], [0]])
    scores = TemperatureLogitsWarper(temperature)(ids, scores)
    if top_k:
        scores = TopKLogitsWarper(top_k)(ids, scores)
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(ids, scores)
    if min_p:
        scores = MinPLogitsWarper(min_p)(ids, scores)
    expected = scores.softmax(dim=-1).numpy()
    np.testing.assert_allclose(process(logits, [option] * 2)[:, 0], expected, atol=2e-6)


def test_temperature_zero_is_one_hot_at_the_lowest_id_of_equals() -> None:
    logits = np.array([[[1, 5, 5, -2]], [[0, 1, 2, 3]]], dtype=np.float32)
    probs = process(logits, [(0.0, 0, 1.0, 0.0), OFF])
    np.testing.assert_array_equal(probs[0, 0], [0, 1, 0, 0])
    np.testing.assert_array_equal(probs[1], process(logits[1:], [OFF])[0])


def test_temperature_zero_ignores_the_filters() -> None:
    logits = random_logits(1, 1, 5, 90)
    probs = process(logits, [(0.0, 3, 0.4, 0.2)])
    np.testing.assert_array_equal(probs, np.eye(90)[logits.argmax(-1)])


def test_rows_do_not_see_each_other() -> None:
    rows: list[Options] = [OFF, (0.0, 0, 1.0, 0.0), (0.7, 5, 1.0, 0.0), (1.0, 0, 0.6, 0.1)]
    logits = random_logits(2, 4, 2, 333)
    together = process(logits, rows)
    for row, option in enumerate(rows):
        alone = process(logits[row : row + 1], [option])
        np.testing.assert_allclose(together[row : row + 1], alone, atol=1e-7)
        np.testing.assert_array_equal(together[row] > 0, alone[0] > 0)


@pytest.mark.parametrize(
    "option", [(1.0, 100, 1.0, 0.0), (1.0, 0, 0.9, 0.0), (0.8, 700, 0.97, 0.0)]
)
def test_windows_widen_until_the_cut_is_found(
    option: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WINDOWS", (4, 32))
    logits = random_logits(3, 2, 3, 1000, spread=0.5)
    expected = twins.process_logits(logits, twin_sampling([option] * 2))
    np.testing.assert_allclose(process(logits, [option] * 2), expected, atol=1e-6)


@pytest.mark.parametrize("top_k", [1, 3, 4, 5, 8, 31, 32, 33, 999, 1000, 5000])
def test_top_k_at_the_borders_of_the_windows(top_k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOWS", (4, 32))
    logits = np.random.default_rng(top_k).integers(0, 50, (1, 2, 1000)).astype(np.float32)
    probs = process(logits, [(1.0, top_k, 1.0, 0.0)])
    expected = twins.process_logits(logits, twin_sampling([(1.0, top_k, 1.0, 0.0)]))
    np.testing.assert_allclose(probs, expected, atol=1e-6)


def test_masked_logits_have_no_mass() -> None:
    logits = random_logits(4, 3, 2, 300)
    logits[..., 100:] = -np.inf
    probs = process(logits, [OFF, (0.0, 0, 1.0, 0.0), (1.0, 200, 0.999, 0.01)])
    assert (probs[..., 100:] == 0).all()
    np.testing.assert_allclose(probs.sum(-1), 1, atol=1e-6)


def test_tiny_temperatures_stay_finite() -> None:
    logits = random_logits(5, 1, 2, 50)
    probs = process(logits, [(1e-45, 0, 1.0, 0.0)])
    np.testing.assert_array_equal(probs, np.eye(50)[logits.argmax(-1)])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("option", [OFF, (0.0, 0, 1.0, 0.0), (0.6, 50, 0.9, 0.05)])
def test_half_precision_over_a_large_vocabulary(dtype: torch.dtype, option: Options) -> None:
    logits = torch.from_numpy(random_logits(6, 2, 2, 150_000)).to(dtype)
    probs = process_logits(logits, torch_sampling([option] * 2))
    assert probs.dtype == torch.float32
    np.testing.assert_allclose(probs.sum(-1).numpy(), 1, atol=1e-4)
    expected = twins.process_logits(logits.float().numpy(), twin_sampling([option] * 2))
    np.testing.assert_allclose(probs.numpy(), expected, atol=1e-6)
    rows = probs.reshape(-1, 150_000)
    for uniform in (0.0, 0.5, LARGEST_UNIFORM):
        tokens = sample(rows, torch.full((4,), uniform))
        assert (rows.gather(1, tokens[:, None]) > 0).all()


@settings(max_examples=150, deadline=None)
@given(data=st.data(), vocab_size=st.sampled_from([1, 2, 3, 64, 100, 257, 512]))
def test_sample_equals_its_twin_where_sums_are_exact(data: st.DataObject, vocab_size: int) -> None:
    """Weights on a grid of 2^-10 sum without rounding, so every token must be the same."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    counts = rng.multinomial(1024, rng.dirichlet(np.full(vocab_size, 0.3)), size=16)
    probs = (counts / 1024).astype(np.float32)
    grid = rng.integers(0, 1024, 16) / 1024  # uniforms on the very edges of the tokens
    for uniforms in (grid, rng.random(16), np.zeros(16), np.full(16, LARGEST_UNIFORM)):
        uniforms = uniforms.astype(np.float32)
        tokens = sample(torch.from_numpy(probs), torch.from_numpy(uniforms)).numpy()
        np.testing.assert_array_equal(tokens, twins.sample(probs, uniforms))


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), vocab_size=st.integers(1, 2000))
def test_sample_always_has_mass(seed: int, vocab_size: int) -> None:
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(vocab_size, 0.05), size=8).astype(np.float32)
    probs[rng.random(probs.shape) < 0.5] = 0
    probs[:, rng.integers(vocab_size)] = rng.choice([1.0, 1e-30])
    uniforms = rng.choice([0, 2**-24, 0.5, LARGEST_UNIFORM], 8).astype(np.float32)
    for draw in (
        sample(torch.from_numpy(probs), torch.from_numpy(uniforms)).numpy(),
        twins.sample(probs, uniforms),
    ):
        assert (probs[np.arange(8), draw] > 0).all()


def test_sample_follows_the_law() -> None:
    probs = np.random.default_rng(8).dirichlet(np.ones(700)).astype(np.float32)
    steps = 200_000
    uniforms = ((np.arange(steps) + 0.5) / steps).astype(np.float32)
    tokens = [
        sample(torch.from_numpy(probs).expand(len(part), -1), torch.from_numpy(part)).numpy()
        for part in np.array_split(uniforms, 20)
    ]
    shares = np.bincount(np.concatenate(tokens), minlength=700) / steps
    np.testing.assert_allclose(shares, probs, atol=1.1 / steps + 1e-6)


def test_not_a_number_gives_some_token_and_no_crash() -> None:
    logits = np.full((1, 1, 600), np.nan, dtype=np.float32)
    for option in (OFF, (0.0, 0, 1.0, 0.0), (1.0, 5, 0.9, 0.1)):
        probs = process_logits(torch.from_numpy(logits), torch_sampling([option]))
        token = int(sample(probs[:, 0], torch.tensor([0.5]))[0])
        assert 0 <= token < 600


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), vocab_size=st.integers(1, 700))
def test_argmax_takes_the_lowest_id(seed: int, vocab_size: int) -> None:
    scores = np.random.default_rng(seed).integers(-3, 3, (2, 3, vocab_size)).astype(np.float32)
    np.testing.assert_array_equal(argmax(torch.from_numpy(scores)).numpy(), scores.argmax(-1))
    np.testing.assert_array_equal(twins.argmax(scores), scores.argmax(-1))
