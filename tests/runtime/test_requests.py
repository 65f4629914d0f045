"""Bad requests: one clear line each, before anything is computed."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spec_compile.errors import BackendError, ConfigError, GenerationError
from spec_compile.runtime.api import Decoder, load
from spec_compile.runtime.requests import GenerationOptions
from spec_compile.runtime.row import Row
from tests.helpers.toy_bundle import NAN_TOKEN, VOCAB, Toy

LoadToy = Callable[[Toy], Decoder]


@pytest.mark.parametrize(
    "name, value",
    [
        ("max_new_tokens", 0),
        ("max_new_tokens", -3),
        ("max_new_tokens", 2.5),
        ("max_new_tokens", True),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_k", 2**63),
        ("min_p", 1.0),
        ("min_p", -0.1),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", [3]),
        ("stop", None),
        ("stop", 7),
        ("stop", np.array(0.5)),
        ("temperature", 1e39),
        pytest.param("temperature", 10**5000, id="temperature-too many digits to print"),
        ("temperature", b"0.5"),
        ("temperature", np.bool_(True)),
        ("temperature", np.array([[1, 2], [3, 4]])),
        pytest.param("top_k", -(10**5000), id="top_k-too many digits to print"),
        pytest.param("top_p", "x" * 10_000, id="top_p-long text"),
        ("ignore_eos", "no"),
        ("speculative", None),
        ("chat", 1),
    ],
)
def test_option_out_of_range(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name) as error:
        GenerationOptions(**{name: value})
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("seed", [-1, 0.5, "x", True, [1, -2], [1, 2, 3], np.array(0.5)])
def test_bad_seed(seed: Any) -> None:
    with pytest.raises(ConfigError, match="seed"):
        GenerationOptions(seed=seed).row_seeds(2)


@pytest.mark.parametrize("method", ["generate", "stream", "stream_tokens"])
def test_unknown_option_is_refused_by_name(load_toy: LoadToy, method: str) -> None:
    with pytest.raises(TypeError, match="repetition_penalty"):
        getattr(load_toy(Toy()), method)([1], repetition_penalty=1.2)


@pytest.mark.parametrize(
    "prompt, message",
    [
        ("", "empty"),
        ([], "empty"),
        ([1, VOCAB], f"token id {VOCAB}"),
        ([-1, 1], "token id -1"),
        ([1.5], "whole token ids"),
        ([True], "whole token ids"),
        (b"ab", "whole token ids"),
        ({1: 2}, "whole token ids"),
        ({1, 2}, "whole token ids"),
        ("a\ud800", "cannot encode this text"),
        ([1] * 48, "holds 47 plus one"),
        ([[1], []], "empty"),
        (["a", ""], "empty"),
    ],
)
def test_prompt_that_cannot_be_served(load_toy: LoadToy, prompt: Any, message: str) -> None:
    with pytest.raises(GenerationError, match=message):
        load_toy(Toy()).generate(prompt)


def test_numpy_prompts_and_options(load_toy: LoadToy) -> None:
    decoder = load_toy(Toy())
    expected = decoder.generate([1, 2], max_new_tokens=5)
    ids = np.array([1, 2], dtype=np.int32)
    assert decoder.generate(ids, max_new_tokens=int(np.int64(5))).token_ids == expected.token_ids
    assert [r.token_ids for r in decoder.generate([ids, ids], max_new_tokens=5)] == [
        expected.token_ids
    ] * 2


@pytest.mark.parametrize("fusion", ["verify", "step"])
@pytest.mark.parametrize("speculative", [True, False])
def test_nan_logits(load_toy: LoadToy, fusion: str, speculative: bool) -> None:
    decoder = load_toy(Toy(fusion=fusion, with_nan=True))
    with pytest.raises(GenerationError, match="prompt 1 hold NaN"):
        decoder.generate([[1], [2, NAN_TOKEN]], speculative=speculative)
    assert decoder.generate([1], max_new_tokens=1).finish_reason == "length"


def test_nan_ends_a_stream(load_toy: LoadToy) -> None:
    stream = load_toy(Toy(with_nan=True)).stream([NAN_TOKEN])
    with pytest.raises(GenerationError, match="NaN"):
        next(stream)
    assert stream.result.finish_reason == "cancelled"


def test_sampling_on_a_greedy_bundle_is_refused(load_toy: LoadToy) -> None:
    with pytest.raises(ConfigError, match="--acceptance"):
        load_toy(Toy(acceptance="greedy")).generate([1], temperature=0.7)


def test_bundle_without_tokenizer(load_toy: LoadToy) -> None:
    decoder = load_toy(Toy(with_tokenizer=False))
    result = decoder.generate([1, 2], max_new_tokens=4, ignore_eos=True)
    assert result.text is None
    assert tuple(decoder.stream_tokens([1, 2], max_new_tokens=4, ignore_eos=True)) == (
        result.token_ids
    )
    for call in (
        lambda: decoder.generate("ab"),
        lambda: decoder.stream([1]),
        lambda: decoder.chat([{"role": "user", "content": "a"}]),
    ):
        with pytest.raises(GenerationError, match="no tokenizer"):
            call()
    with pytest.raises(ConfigError, match="no tokenizer"):
        decoder.generate([1], stop="a")


def test_a_stream_takes_one_prompt(load_toy: LoadToy) -> None:
    with pytest.raises(GenerationError, match="one prompt"):
        load_toy(Toy()).stream([[1], [2]])  # type: ignore[list-item]


@pytest.mark.parametrize("num_threads", [0, -1, 1.5, "2", True, 10**30, 1025])
def test_number_of_threads_that_no_engine_starts(tmp_path: Path, num_threads: Any) -> None:
    with pytest.raises(ConfigError, match="num_threads"):
        load(tmp_path, num_threads=num_threads)


def test_caches_that_do_not_fit(load_toy: LoadToy, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = load_toy(Toy())

    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(decoder.engine, "zeros", full)
    with pytest.raises(BackendError, match="not enough memory for 1 rows of 48 tokens"):
        decoder.generate([1])


def test_an_interrupt_ends_a_stream(load_toy: LoadToy, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    stream = load_toy(Toy()).stream_tokens([1, 2])
    next(stream)
    monkeypatch.setattr("spec_compile.runtime.rounds.Rounds.run", interrupt)
    with pytest.raises(KeyboardInterrupt):
        list(stream)
    assert stream.result.finish_reason == "cancelled"
    assert list(stream) == []


def test_threads_share_a_stream(load_toy: LoadToy) -> None:
    decoder, taken = load_toy(Toy()), []
    expected = decoder.generate([1, 2], max_new_tokens=30, ignore_eos=True).token_ids
    stream = decoder.stream_tokens([1, 2], max_new_tokens=30, ignore_eos=True)
    with ThreadPoolExecutor(3) as pool:
        for part in pool.map(lambda _: list(stream), range(3)):
            taken += part
    assert sorted(taken) == sorted(expected)


def test_a_row_takes_nothing_after_its_stream_was_closed(load_toy: LoadToy) -> None:
    toy = load_toy(Toy())
    row = Row(
        budget=9,
        budget_reason="length",
        eos_token_ids=(),
        stops=(),
        tokenizer=toy.tokenizer,
        num_speculative_tokens=3,
    )
    row.accept([1, 7], 1.0)
    row.cancel()
    said = row.text
    assert row.accept([2, 3], 1.0) == []
    assert (row.token_ids, row.text, row.stats().num_rounds) == ([1, 7], said, 1)
