"""Chi-square over 200,000 rounds of the graph in ONNX Runtime: drafting, sampling, acceptance."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from spec_compile.runtime import sampling as twins
from tests.acceptance.graphs import (
    OPTIONS,
    Array,
    Graph,
    MarkovRound,
    option_arrays,
    sampling_examples,
)

VOCAB_SIZE = 5
NUM_DRAFTED = 2
ROUNDS = 200_000
BATCH = 20_000
START = 0
SETTINGS = {
    "plain": (1.0, 0, 1.0, 0.0),
    "cold": (0.6, 0, 1.0, 0.0),
    "top-k": (1.0, 3, 1.0, 0.0),
    "top-p": (0.9, 0, 0.85, 0.0),
    "min-p": (1.2, 0, 1.0, 0.2),
}


def tables() -> tuple[Array, Array]:
    """Logits of the draft and the target after each last token: related, far from equal."""
    rng = np.random.default_rng(11)
    target = rng.standard_normal((VOCAB_SIZE, VOCAB_SIZE)).astype(np.float32)
    noise = rng.standard_normal(target.shape).astype(np.float32)
    return target + noise * np.float32(0.8), target


@pytest.fixture(scope="module")
def graph() -> Graph:
    draft, target = (torch.from_numpy(table) for table in tables())
    examples = {
        "state": torch.zeros(2, dtype=torch.int64),
        "raw": torch.zeros(2, dtype=torch.bool),
        "uniforms": torch.zeros(2, 2 * NUM_DRAFTED + 1),
        **sampling_examples(),
    }
    return Graph(MarkovRound(draft, target, NUM_DRAFTED), examples)


def transition(option: tuple[float, int, float, float]) -> Array:
    """The target's processed law after each token."""
    options = option_arrays([option])
    sampling = twins.Sampling(*(options[name] for name in OPTIONS))
    law = twins.process_logits(tables()[1][None], sampling)[0].astype(np.float64)
    return np.asarray(law / law.sum(-1, keepdims=True))


def sequences(
    graph: Graph, option: tuple[float, int, float, float], seed: int, raw: bool = False
) -> Array:
    """Rounds x (k + 1) tokens: what each round emitted, then the target's own continuation."""
    rng = np.random.default_rng(seed)
    options = option_arrays([option] * BATCH)
    state = np.full(BATCH, START, dtype=np.int64)
    biased = np.full(BATCH, raw)
    law = transition(option)
    batches = []
    for _ in range(ROUNDS // BATCH):
        uniforms = rng.random((BATCH, 2 * NUM_DRAFTED + 1), dtype=np.float32)
        output, count = graph(state=state, raw=biased, uniforms=uniforms, **options)
        for position in range(1, NUM_DRAFTED + 1):
            missing = np.flatnonzero(count <= position)
            cumulative = law[output[missing, position - 1]].cumsum(-1)
            draws = rng.random((len(missing), 1))
            output[missing, position] = (cumulative[:, :-1] <= draws).sum(-1)
        batches.append(output)
    return np.concatenate(batches)


def p_value(tokens: Array, option: tuple[float, int, float, float]) -> float:
    """Chi-square of the token sequences against the target's joint law.

    Sequences that are impossible must not occur; rare ones are pooled.
    """
    law = transition(option)
    paths = list(itertools.product(range(VOCAB_SIZE), repeat=NUM_DRAFTED + 1))
    steps = ([*zip((START, *path[:-1]), path, strict=True)] for path in paths)
    expected = np.array([np.prod([law[a, b] for a, b in step]) for step in steps]) * len(tokens)
    codes = tokens @ VOCAB_SIZE ** np.arange(NUM_DRAFTED, -1, -1)
    observed = np.bincount(codes, minlength=len(paths)).astype(float)
    if observed[expected == 0].any():
        return 0.0
    rare = expected < 10
    pooled = [np.append(v[~rare], v[rare].sum()) for v in (observed, expected)]
    keep = pooled[1] > 0
    result = stats.chisquare(pooled[0][keep], pooled[1][keep], sum_check=False)
    return float(result.pvalue)


@pytest.mark.parametrize("name", SETTINGS)
def test_rounds_follow_the_target_s_joint_law(graph: Graph, name: str) -> None:
    option = SETTINGS[name]
    assert p_value(sequences(graph, option, seed=101), option) > 1e-3


def test_a_draft_law_other_than_the_sampled_one_is_found(graph: Graph) -> None:
    """The same test sees a published bug: temperature left out of draft_probs."""
    option = SETTINGS["cold"]
    assert p_value(sequences(graph, option, seed=101, raw=True), option) < 1e-6
