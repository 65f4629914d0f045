"""Chi-square of what whole rounds emit, models included, against the target's exact law.

At least 200,000 rounds each of the fused graphs in ONNX Runtime, thousands of rows a call.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from spec_compile.config import SpecConfig
from spec_compile.driver import compile as compile_pair
from spec_compile.runtime import sampling as twins
from tests.helpers.captured import eager_logits, eager_model
from tests.helpers.contract_loop import ContractLoop
from tests.helpers.tiny_models import save_tiny_model, write_tokenizer

VOCABULARY = list("<abcdefg")
V, K = len(VOCABULARY), 2
ROWS, BATCHES = 8192, 13
PROMPT = [3, 1, 4]
SIZES: dict[str, Any] = {"vocab_size": V, "num_hidden_layers": 1, "hidden_size": 16}
TARGET, DRAFT = SIZES | {"seed": 21}, SIZES | {"seed": 22}
SETTINGS = {
    "plain": (1.5, 0, 1.0, 0.0),
    "cold": (0.8, 0, 1.0, 0.0),
    "top-k": (2.0, 4, 1.0, 0.0),
    "top-p": (2.0, 0, 0.85, 0.0),
    "min-p": (1.5, 0, 1.0, 0.1),
    "all": (1.2, 5, 0.9, 0.05),
}
OPTIONS = ("temperature", "top_k", "top_p", "min_p")
MIXED = ("plain", "top-k", "top-p", "all")
Loops = Callable[[str], ContractLoop]


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> Loops:
    """`loops(fusion)`: the rounds of a pair of unrelated models, over thousands of rows.

    "step, trimmed": the draft can propose five of the eight tokens only.
    """

    @cache
    def build(kind: str) -> ContractLoop:
        folder = tmp_path_factory.mktemp("law")
        fusion, _, trimmed = kind.partition(", ")
        text = folder / "text"
        text.write_text("abcdabcdee")
        for name, options in (("target", TARGET), ("draft", DRAFT)):
            save_tiny_model(folder / name, "llama", **options)
            write_tokenizer(folder / name, VOCABULARY)
        vocab: dict[str, Any] = {}
        if trimmed:
            vocab = {"draft_vocab": 5, "draft_vocab_text": str(text)}
        config = SpecConfig(K, "rejection", fusion, max_length=12, batch_size=ROWS, **vocab)
        bundle: Path = compile_pair(
            str(folder / "target"), str(folder / "draft"), folder / "bundle", config
        )
        return ContractLoop(bundle)

    return build


@cache
def pair_law(setting: str) -> NDArray[np.float64]:
    """The target's law of the first two tokens, [V, V], from transformers and the NumPy twin."""
    model = eager_model("llama", **TARGET)
    values = dict(zip(OPTIONS, SETTINGS[setting], strict=True))
    sampling = twins.Sampling(**{n: np.array([v]) for n, v in values.items()})

    def next_law(committed: list[int]) -> NDArray[np.float64]:
        logits = eager_logits(model, committed)[-1].numpy()
        law = twins.process_logits(logits[None, None], sampling)[0, 0].astype(np.float64)
        return np.asarray(law / law.sum())

    first = next_law(PROMPT)
    return np.stack([first[token] * next_law([*PROMPT, token]) for token in range(V)])


def emitted_pairs(
    loop: ContractLoop, settings: tuple[str, ...], seed: int, *, biased: bool = False
) -> NDArray[np.int64]:
    """The first two tokens of every row, [len(settings), N, 2]; rows take turns in the settings.

    Rows whose first round emits one token only take the second from the next round.
    """
    rng = np.random.default_rng(seed)
    columns = zip(*(SETTINGS[name] for name in settings), strict=True)
    share = ROWS // len(settings)
    options = {
        name: np.tile(np.array(column), share)
        for name, column in zip(OPTIONS, columns, strict=True)
    }
    pairs = []
    for _ in range(BATCHES):
        loop.start([PROMPT] * (share * len(settings)), **options)
        for _ in range(2):
            loop.round(rng, biased=biased)
        pairs.append([row[len(PROMPT) : len(PROMPT) + 2] for row in loop.committed])
    found = np.array(pairs).reshape(BATCHES, share, len(settings), 2)
    return found.transpose(2, 0, 1, 3).reshape(len(settings), -1, 2)


def p_value(observed: NDArray[np.int64], law: NDArray[np.float64]) -> float:
    """Chi-square of counted tokens; what is impossible must not occur, what is rare is pooled."""
    counts = np.bincount(observed, minlength=law.size).astype(float)
    if counts[law == 0].any():
        return 0.0
    expected = law * len(observed)
    rare = expected < 10
    pooled = [np.append(v[~rare], v[rare].sum()) for v in (counts, expected)]
    keep = pooled[1] > 0
    return float(stats.chisquare(pooled[0][keep], pooled[1][keep], sum_check=False).pvalue)


def p_values(pairs: NDArray[np.int64], setting: str) -> dict[str, float]:
    law = pair_law(setting)
    return {
        "first token": p_value(pairs[:, 0], law.sum(axis=1)),
        "first two tokens": p_value(pairs[:, 0] * V + pairs[:, 1], law.ravel()),
    }


def test_there_are_enough_rounds_and_the_laws_differ() -> None:
    """The proof below has weight: many rounds, rejections, and settings that matter."""
    assert 2 * ROWS * BATCHES >= 200_000
    laws = [pair_law(name) for name in SETTINGS]
    for one, other in itertools.combinations(laws, 2):
        assert np.abs(one - other).sum() > 0.05


def test_rows_of_many_settings_follow_the_target_s_law(loops: Loops) -> None:
    """212,992 rounds of the step graph; each row has options of its own."""
    loop = loops("step")
    found = emitted_pairs(loop, MIXED, seed=1)
    for setting, pairs in zip(MIXED, found, strict=True):
        assert min(p_values(pairs, setting).values()) > 1e-3, setting


def test_a_draft_of_few_tokens_leaves_the_target_s_law(loops: Loops) -> None:
    loop = loops("step, trimmed")
    found = emitted_pairs(loop, MIXED, seed=4)
    for setting, pairs in zip(MIXED, found, strict=True):
        assert min(p_values(pairs, setting).values()) > 1e-3, setting


def test_a_bias_is_found(loops: Loops) -> None:
    """The same rounds, when the draft's numbers also decide over its tokens."""
    (pairs,) = emitted_pairs(loops("step"), ("plain",), seed=2, biased=True)
    assert max(p_values(pairs, "plain").values()) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("fusion", ["step", "verify"])
def test_each_setting_follows_the_target_s_law(loops: Loops, fusion: str, setting: str) -> None:
    (pairs,) = emitted_pairs(loops(fusion), (setting,), seed=3)
    assert min(p_values(pairs, setting).values()) > 1e-3
