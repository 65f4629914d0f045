"""Sampled generations: seeds, rows, interleaving, and the same draw in both fusions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from spec_compile.runtime.api import Decoder
from tests.helpers.toy_bundle import Toy

LoadToy = Callable[[Toy], Decoder]
PROMPTS = [[1], [2, 3, 4, 5, 6], [9, 9], [12, 1, 12], [4, 4]]


@pytest.mark.parametrize("speculative", [True, False])
def test_same_seed_same_tokens(load_toy: LoadToy, speculative: bool) -> None:
    decoder = load_toy(Toy())
    runs = [
        decoder.generate([1, 2], temperature=1.0, seed=seed, speculative=speculative).token_ids
        for seed in (7, 7, 8)
    ]
    assert runs[0] == runs[1] != runs[2]


def test_no_seed_is_fresh_entropy_and_reported(load_toy: LoadToy) -> None:
    decoder = load_toy(Toy())
    first, second = (decoder.generate([1, 2], temperature=1.5) for _ in range(2))
    assert first.seed != second.seed
    again = decoder.generate([1, 2], temperature=1.5, seed=first.seed)
    assert again.token_ids == first.token_ids


@pytest.mark.parametrize("fusion", ["verify", "step"])
def test_row_of_a_batch_equals_a_run_alone_with_its_seed(load_toy: LoadToy, fusion: str) -> None:
    decoder = load_toy(Toy(fusion=fusion, batch_size=3))
    together = decoder.generate(PROMPTS, temperature=0.9, seed=40, max_new_tokens=30)
    for row, prompt in enumerate(PROMPTS):
        alone = decoder.generate(prompt, temperature=0.9, seed=40 + row, max_new_tokens=30)
        assert together[row].seed == 40 + row
        assert together[row].token_ids == alone.token_ids


def test_a_list_gives_each_row_its_seed(load_toy: LoadToy) -> None:
    decoder = load_toy(Toy())
    results = decoder.generate([[1, 2]] * 3, temperature=1.0, seed=[5, 9, 5])
    assert results[0].token_ids == results[2].token_ids != results[1].token_ids


def test_both_fusions_give_the_same_tokens(load_toy: LoadToy) -> None:
    runs = [
        load_toy(Toy(fusion=fusion, k=k)).generate(PROMPTS, temperature=0.8, seed=3)
        for k in (1, 4)
        for fusion in ("verify", "step")
    ]
    tokens = [[result.token_ids for result in run] for run in runs]
    assert tokens[0] == tokens[1]
    assert tokens[2] == tokens[3]


def test_interleaved_streams_do_not_disturb_each_other(load_toy: LoadToy) -> None:
    decoder = load_toy(Toy())
    seeds = (1, 2, 3)
    expected = [decoder.generate([2, 1], temperature=1.0, seed=s).token_ids for s in seeds]
    streams = [decoder.stream_tokens([2, 1], temperature=1.0, seed=s) for s in seeds]
    running = list(streams)
    while running:
        running = [stream for stream in running if next(stream, None) is not None]
    assert [stream.result.token_ids for stream in streams] == expected


def test_threads_share_a_decoder(load_toy: LoadToy) -> None:
    decoder = load_toy(Toy())

    def run(seed: int) -> tuple[int, ...]:
        return decoder.generate([2, 1], temperature=1.0, seed=seed).token_ids

    expected = [run(seed) for seed in range(12)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(12))) == expected


@pytest.mark.parametrize("fusion", ["verify", "step"])
def test_law_is_the_targets(load_toy: LoadToy, fusion: str) -> None:
    """The first two tokens of many rows against the table, within five standard errors."""
    toy = Toy(fusion=fusion, draft="random", k=2, batch_size=500)
    num_rows = 4000
    results = load_toy(toy).generate(
        [[3, 1]] * num_rows, temperature=1.0, seed=0, max_new_tokens=2, ignore_eos=True
    )
    counts = Counter(result.token_ids for result in results)
    for pair, expected in _law_of_pairs(toy, [3, 1]).items():
        error = np.sqrt(expected * (1 - expected) / num_rows)
        assert abs(counts[pair] / num_rows - expected) < 5 * error + 1e-9


def _law_of_pairs(toy: Toy, prompt: list[int]) -> dict[tuple[int, ...], float]:
    laws: dict[tuple[int, ...], float] = {}
    for first, mass in enumerate(_softmax(toy.target.next_logits(prompt))):
        rest = _softmax(toy.target.next_logits([*prompt, first]))
        laws |= {(first, second): float(mass * m) for second, m in enumerate(rest)}
    return laws


def _softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return np.asarray(weights / weights.sum())
