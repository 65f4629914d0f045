"""Adaptive drafting: the choice against simulated costs, and outputs that it may not change."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from spec_compile.errors import ConfigError
from spec_compile.runtime import decoder as loop
from spec_compile.runtime.adaptive import Costs, Planner
from spec_compile.runtime.api import Decoder
from spec_compile.runtime.batch import Batch
from spec_compile.runtime.engine import Engine, Run
from spec_compile.runtime.requests import GenerationOptions, Options
from spec_compile.runtime.rounds import Rounds
from spec_compile.runtime.row import LENGTH, Row
from tests.helpers.toy_bundle import Toy

LoadToy = Callable[[Toy], Decoder]
K = 4


class Scripted(Planner):
    """Chooses the given numbers in turn."""

    def __init__(self, lengths: Sequence[int]) -> None:
        super().__init__(max(lengths))
        self.script = itertools.cycle(lengths)

    def choose(self, available: Sequence[int]) -> int:
        return min(next(self.script), max(available))


class Simulated:
    """A clock, and an engine whose calls take what they are said to take.

    Args:
        engine: computes.
        cost: milliseconds of a call, from the graph and its number of draft tokens.
    """

    def __init__(self, engine: Engine, cost: Callable[[str, int], float]) -> None:
        self.engine, self.cost, self.milliseconds = engine, cost, 0.0

    def clock(self) -> float:
        return self.milliseconds / 1000

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Any:
        return self.engine.zeros(shape, dtype)

    def bind(self, graph: str, buffers: Mapping[str, Any]) -> Run:
        run = self.engine.bind(graph, buffers)
        drafted = buffers["draft_tokens"].shape[1] if "draft_tokens" in buffers else 0
        milliseconds = self.cost(graph, drafted)

        def timed() -> None:
            run()
            self.milliseconds += milliseconds

        return timed


def simulate(
    planner: Planner, chances: Callable[[int], float], draft_ms: float, tokens: int, seed: int = 0
) -> tuple[float, list[int]]:
    """Time over that of plain decoding, where a target call takes 1 ms and 0.05 more a draft token.

    Args:
        planner: chooses.
        chances: acceptance of a draft token, by the number of tokens emitted so far.
        draft_ms: of drafting, however many tokens are verified.
        tokens: to emit.
        seed: of the acceptances.
    """
    rng = np.random.default_rng(seed)
    emitted, elapsed = 0, 0.0
    lengths = []
    while emitted < tokens:
        length = planner.choose([K])
        accepted = 0
        while accepted < length and rng.random() < chances(emitted):
            accepted += 1
        taken = 1.0 + 0.05 * length + (draft_ms if length else 0.0)
        planner.observe(length, [length], [accepted + 1], taken)
        emitted, elapsed = emitted + accepted + 1, elapsed + taken
        lengths.append(length)
    return elapsed / emitted, lengths


@pytest.mark.parametrize("draft_ms", [0.04, 1.0, 4.0])
@pytest.mark.parametrize("chance", [0.0, 0.05, 0.2])
def test_what_does_not_pay_costs_little(chance: float, draft_ms: float) -> None:
    """A planner that has seen one short generation, as after a warm-up."""
    planner = Planner(K)
    simulate(planner, lambda _: chance, draft_ms, 128)
    for seed in range(5):
        time, _ = simulate(planner, lambda _: chance, draft_ms, 512, seed)
        assert time <= 1.05


def test_the_first_generation_pays_for_learning_at_most_a_few_plain_steps() -> None:
    time, lengths = simulate(Planner(K), lambda _: 0.0, 3.0, 512)
    assert time * 512 <= 512 * 1.03 + 16
    assert lengths.count(0) > 450


@pytest.mark.parametrize("draft_ms,chance", [(0.2, 0.9), (0.5, 0.8), (0.4, 0.6)])
def test_what_pays_is_used(draft_ms: float, chance: float) -> None:
    """Within a tenth of the best fixed number of draft tokens."""

    def expected(length: int) -> float:
        tokens = sum(chance**i for i in range(length + 1))
        return (1 + 0.05 * length + (draft_ms if length else 0.0)) / tokens

    best = min(expected(length) for length in range(K + 1))
    time, _ = simulate(Planner(K), lambda _: chance, draft_ms, 2000)
    assert best < 0.8
    assert time <= 1.1 * best


def test_follows_a_text_that_changes() -> None:
    """Drafting stops where acceptance ends, and comes back where it does."""
    time, lengths = simulate(Planner(K), lambda n: 0.9 if n // 1000 % 2 else 0.02, 0.6, 4000)
    assert time < 0.85
    assert lengths[100:800].count(0) > 600
    assert lengths[-150:].count(0) < 30


def test_a_disturbed_round_is_no_reason_to_stop() -> None:
    planner = Planner(K)
    simulate(planner, lambda _: 0.9, 0.2, 400)
    planner.observe(K, [K], [3], 500.0)
    assert planner.choose([K]) == K


def test_costs_between_measured_numbers_are_on_a_line() -> None:
    costs = Costs()
    for length, milliseconds in ((0, 1.0), (4, 3.0)):
        costs.add(length, 99.0)  # the first is cold
        assert not costs.known(length)
        for noise in (0.0, 0.1, -0.1, 50.0, 0.05):
            costs.add(length, milliseconds + noise)
    assert costs.estimate(0) == pytest.approx(1.05)
    assert costs.estimate(2) == pytest.approx(2.05)
    assert costs.estimate(9) == pytest.approx(3.05)


def test_rates_of_positions_that_were_not_reached_lean_on_those_before() -> None:
    planner = Planner(K)
    for _ in range(200):
        planner.observe(2, [2], [3], 1.2)
    rates = planner.rates()
    assert rates[0] > 0.95 and rates[1] > 0.95
    assert rates[2] == pytest.approx(rates[1]) and rates[3] == pytest.approx(rates[1])


def test_rows_without_proposals_and_rounds_without_rows_are_no_evidence() -> None:
    planner = Planner(K)
    fresh = planner.rates()
    planner.observe(0, [0, 0], [1, 1], 1.0)
    planner.observe(0, [], [], 1.0)
    assert planner.rates() == fresh
    assert planner.choose([]) == planner.choose([0, 0]) == 0
    assert planner.choose([0, 3]) == 3  # never tried: the most there are


@pytest.mark.parametrize("draft,most", [("wrong", 1.06), ("self", 0.65)])
def test_generations_by_a_simulated_clock(load_toy: LoadToy, draft: str, most: float) -> None:
    """Against plain decoding at 1 ms a token, with one planner over several generations."""

    def cost(graph: str, drafted: int) -> float:
        return 0.5 if graph == "draft" else 1.0 + 0.1 * drafted

    toy = Toy(draft=draft, k=K, acceptance="match", max_length=400)
    decoder, planner = load_toy(toy), Planner(K)
    simulated = Simulated(decoder.engine, cost)
    options = GenerationOptions(max_new_tokens=300)
    for prompt in ([1], [2, 3, 4], [9, 9]):
        batch = Batch([prompt], options, [0], toy.max_length)
        rounds = Rounds(simulated, decoder.manifest, batch, planner=planner, clock=simulated.clock)
        row = Row(
            budget=300,
            budget_reason=LENGTH,
            eos_token_ids=(),
            stops=(),
            tokenizer=None,
            num_speculative_tokens=K,
        )
        for _ in loop.decode(rounds, batch, [row]):
            pass
        assert row.token_ids == toy.target.greedy(prompt, 300)
    assert simulated.milliseconds <= most * 3 * 300


def generate(
    decoder: Decoder, prompts: list[list[int]], lengths: Sequence[int], temperature: float = 0.0
) -> tuple[Row, ...]:
    """30 tokens a prompt, in rounds of the given numbers of draft tokens."""
    options = GenerationOptions(max_new_tokens=30, temperature=temperature, ignore_eos=True)
    generation = loop.start(
        decoder.engine,
        decoder.manifest,
        None,
        prompts,
        options,
        list(range(len(prompts))),
        Scripted(lengths),
    )
    for _ in generation.loop:
        pass
    return generation.rows


SCRIPTS = ([0, 3], [0, 0, 0, 1], [3, 0, 0, 2, 1, 0, 0, 0, 0, 3, 3], [1], [2, 2, 0], [0, 0, 2])


@pytest.mark.parametrize("lengths", SCRIPTS)
@pytest.mark.parametrize("acceptance", ["rejection", "match", "greedy"])
@pytest.mark.parametrize("draft", ["self", "good", "wrong"])
def test_greedy_output_is_the_target_s_whatever_is_chosen(
    load_toy: LoadToy, lengths: list[int], acceptance: str, draft: str
) -> None:
    toy = Toy(draft=draft, acceptance=acceptance)
    prompts = [[1], [2, 3, 4, 5, 6, 7, 8], [9, 9]]
    rows = generate(load_toy(toy), prompts, lengths)
    for prompt, row in zip(prompts, rows, strict=True):
        assert row.token_ids == toy.target.greedy(prompt, 30)
        stats = row.stats()
        if draft == "self":
            # Also after plain rounds, whose tokens the draft has to read later.
            assert stats.acceptance_rate == 1.0 and stats.num_draft_tokens > 0
        if draft == "wrong":
            assert stats.num_accepted_tokens == 0
            chosen = itertools.islice(itertools.cycle(lengths), stats.num_rounds - 1)
            assert sum(r.num_draft_tokens for r in stats.rounds[:-1]) == sum(chosen)


@pytest.mark.parametrize("lengths", SCRIPTS)
def test_a_draft_equal_to_the_target_is_accepted_at_any_temperature(
    load_toy: LoadToy, lengths: list[int]
) -> None:
    """The laws of the first draft tokens reach the rule, each in its place."""
    rows = generate(load_toy(Toy(draft="self")), [[1], [4, 2, 1]], lengths, temperature=1.3)
    assert all(row.stats().acceptance_rate == 1.0 for row in rows)


@pytest.mark.parametrize("drafter", ["model", "prompt-lookup"])
def test_by_the_rule_match_a_seed_means_the_same_tokens_whatever_is_chosen(
    load_toy: LoadToy, drafter: str
) -> None:
    decoder = load_toy(Toy(acceptance="match", drafter=drafter))
    prompts = [[1], [2, 3, 2, 3], [9, 9]]
    runs = [
        [tuple(row.token_ids) for row in generate(decoder, prompts, lengths, temperature=1.1)]
        for lengths in ([0], [3], *SCRIPTS)
    ]
    assert all(run == runs[0] for run in runs)
    by_timing = decoder.generate(
        prompts, max_new_tokens=30, temperature=1.1, seed=0, ignore_eos=True, adaptive=True
    )
    assert [one.token_ids for one in by_timing] == runs[0]


@pytest.mark.parametrize("toy", [Toy(), Toy(acceptance="match", drafter="prompt-lookup")])
def test_adaptive_generation(load_toy: LoadToy, toy: Toy) -> None:
    decoder = load_toy(toy)
    for prompt in ([3], [1, 2, 1, 2], [5, 6, 7]):
        result = decoder.generate(prompt, max_new_tokens=30, ignore_eos=True, adaptive=True)
        assert list(result.token_ids) == toy.target.greedy(prompt, 30)
        stats = result.stats
        assert stats.num_emitted_tokens == 30
        assert sum(stats.acceptance_histogram) == stats.num_rounds


@pytest.mark.parametrize(
    "toy,options,message",
    [
        (Toy(fusion="step"), {}, r"this bundle \(fusion step, acceptance rejection, k=3\)"),
        (Toy(any_length=False), {}, "has one number; export with --fusion verify"),
        (Toy(), {"speculative": False}, "exclude each other"),
        (Toy(), {"adaptive": 1}, "adaptive=1 must be True or False"),
    ],
)
def test_is_refused_where_it_cannot_be(
    load_toy: LoadToy, toy: Toy, options: Options, message: str
) -> None:
    asked: Options = {"adaptive": True, "max_new_tokens": 2, **options}
    with pytest.raises(ConfigError, match=message):
        load_toy(toy).generate([1], **asked)


@pytest.mark.parametrize("drafter,acceptance", [("model", "rejection"), ("prompt-lookup", "match")])
def test_a_graph_of_one_length_still_runs(load_toy: LoadToy, drafter: str, acceptance: str) -> None:
    toy = Toy(any_length=False, drafter=drafter, acceptance=acceptance)
    result = load_toy(toy).generate([1, 2, 1], max_new_tokens=20, ignore_eos=True)
    assert list(result.token_ids) == toy.target.greedy([1, 2, 1], 20)
