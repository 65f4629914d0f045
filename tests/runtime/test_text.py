"""Streamed text: whole characters, no piece of a stop string, the same as cutting the full text."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_compile.runtime.api import Decoder
from spec_compile.runtime.text import IncrementalDecoder, StopScanner
from tests.helpers.toy_bundle import EOS, VOCAB, Toy, toy_tokenizer

LoadToy = Callable[[Toy], Decoder]
TOKENIZER = toy_tokenizer()
texts = st.text("ab c", max_size=30)
stop_lists = st.lists(st.text("ab c", min_size=1, max_size=4), max_size=3)
token_lists = st.lists(st.integers(1, VOCAB - 1), max_size=30)


def reference_cut(text: str, stops: Sequence[str]) -> str:
    """Read character by character; the first stop string to be complete ends the text."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))]
    return text


def in_pieces(text: str, cuts: Sequence[int]) -> list[str]:
    """`text` cut at the given places."""
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    return [text[a:b] for a, b in itertools.pairwise(places)]


def decode(token_ids: Sequence[int]) -> str:
    """The tokenizer's own decoding."""
    return str(TOKENIZER.decode(token_ids))


@given(texts, stop_lists, st.lists(st.integers(0, 30), max_size=8))
def test_scanner_equals_cut_of_the_full_text(text: str, stops: list[str], cuts: list[int]) -> None:
    scanner, shown = StopScanner(stops), ""
    expected = reference_cut(text, stops)
    for piece in in_pieces(text, cuts):
        shown += scanner.push(piece)
        assert expected.startswith(shown)
        if scanner.stopped:
            break
    assert shown + scanner.finish() == expected
    assert scanner.stopped == any(stop in text for stop in stops)


def test_scanner_holds_back_only_what_may_become_a_stop() -> None:
    scanner = StopScanner(["abc"])
    assert [scanner.push(piece) for piece in ("xa", "b", "d", "ab")] == ["x", "", "abd", ""]
    assert scanner.finish() == "ab"


@given(token_lists)
def test_incremental_text_equals_decoding_at_once(token_ids: list[int]) -> None:
    decoder = IncrementalDecoder(decode)
    pieces = [decoder.push(token) for token in token_ids]
    assert "".join(pieces) + decoder.finish() == decode(token_ids)


def test_characters_of_several_bytes_come_whole() -> None:
    decoder = IncrementalDecoder(decode)
    euro = [9, 10, 11]  # its three bytes
    assert [decoder.push(token) for token in (1, *euro, 2)] == ["a", "", "", "€", "b"]
    assert [decoder.push(token) for token in euro[:2]] == ["", ""]
    assert decoder.finish() == "\ufffd"


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), stop_lists, st.integers(1, 40), st.sampled_from(["verify", "step"]))
def test_stream_equals_cut_of_the_full_text(
    load_toy: LoadToy, seed: int, stops: list[str], budget: int, fusion: str
) -> None:
    """Stop strings across token and round borders, through the whole decoder."""
    decoder = load_toy(Toy(fusion=fusion, k=4))
    options = {"temperature": 1.0, "seed": seed, "max_new_tokens": budget}
    whole = decoder.generate([1, 2], **options)  # type: ignore[call-overload]
    stream = decoder.stream([1, 2], stop=stops, **options)  # type: ignore[arg-type]
    pieces = list(stream)
    expected = reference_cut(whole.text, stops)
    assert "".join(pieces) == stream.result.text == expected
    assert all(pieces)
    stopped = expected != whole.text
    assert (stream.result.finish_reason == "stop") == stopped
    kept = stream.result.token_ids
    assert kept == whole.token_ids[: len(kept)]
    assert stream.result.stats.num_emitted_tokens == len(kept)
    if stopped:
        before, after = (decode([t for t in ids if t != EOS]) for ids in (kept[:-1], kept))
        assert reference_cut(before, stops) == before
        assert reference_cut(after, stops) != after


def test_generate_gives_the_streamed_text(load_toy: LoadToy) -> None:
    decoder = load_toy(Toy())
    for seed in range(20):
        result = decoder.generate([1, 2], temperature=1.0, seed=seed, stop="b")
        pieces = list(decoder.stream([1, 2], temperature=1.0, seed=seed, stop="b"))
        assert "".join(pieces) == result.text
        assert "b" not in "".join(pieces)


def test_special_token_as_stop_string(load_toy: LoadToy) -> None:
    """Special tokens have no text, so their spelling stops at the token."""
    toy = Toy(draft="self", eos=())
    whole = toy.target.greedy([2], 40)
    result = load_toy(toy).generate([2], max_new_tokens=40, stop="<eos>")
    assert list(result.token_ids) == whole[: whole.index(EOS) + 1]
    assert result.finish_reason == "stop"
    assert result.text is not None
    assert "<eos>" not in result.text


@pytest.mark.parametrize("method", ["stream", "stream_tokens"])
def test_closing_a_stream_cancels(load_toy: LoadToy, method: str) -> None:
    decoder = load_toy(Toy())
    with getattr(decoder, method)([1, 2], max_new_tokens=40, ignore_eos=True) as stream:
        next(stream)
    kept = stream.result
    assert kept.finish_reason == "cancelled"
    assert 0 < len(kept.token_ids) < 40
    assert list(stream) == []
    assert stream.result.token_ids == kept.token_ids


def test_a_stream_computes_nothing_ahead(load_toy: LoadToy) -> None:
    stream = load_toy(Toy(draft="self", k=3)).stream_tokens([1, 2], ignore_eos=True)
    assert stream.result.stats.num_rounds == 0
    for taken in range(1, 10):
        next(stream)
        assert stream.result.stats.num_rounds == -(-taken // 4)
    assert stream.result.finish_reason == "running"
