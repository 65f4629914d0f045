"""Prompts as token ids that fit the bundle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spec_compile.errors import ConfigError
from spec_compile.prompts import BUILT_IN
from spec_compile.runtime.api import Decoder
from spec_compile.runtime.requests import check_prompt

_LONGEST_RANDOM = 24


def check_prompts(decoder: Decoder, texts: Sequence[str] | None, seed: int) -> list[list[int]]:
    """Token ids of `texts`, or a built-in set: texts, and random ids of awkward lengths.

    Raises:
        ConfigError: texts were given, but the bundle has no tokenizer.
        GenerationError: a text without a token, or too long for the bundle.
    """
    if texts is not None:
        return _given_ids(decoder, texts)
    return _built_in_ids(decoder) + random_ids(decoder, seed)


def bench_prompts(decoder: Decoder, texts: Sequence[str] | None, seed: int) -> list[list[int]]:
    """Token ids of `texts`, or of the built-in texts, or random ones without a tokenizer.

    Raises:
        ConfigError: texts were given, but the bundle has no tokenizer.
        GenerationError: a text without a token, or too long for the bundle.
    """
    if texts is not None:
        return _given_ids(decoder, texts)
    return _built_in_ids(decoder) or random_ids(decoder, seed)


def random_ids(decoder: Decoder, seed: int) -> list[list[int]]:
    """Seeded ids: one token, two, a block, and some more, where the bundle holds that many."""
    rng = np.random.default_rng(seed)
    block = decoder.manifest.config.num_speculative_tokens + 1
    return [
        rng.integers(decoder.manifest.vocab_size, size=min(length, _longest(decoder))).tolist()
        for length in (1, 2, block, _LONGEST_RANDOM)
    ]


def long_context(decoder: Decoder, length: int, seed: int) -> list[int]:
    """Exactly `length` token ids: the built-in prompts one after the other, again and again."""
    ids = [token for prompt in check_prompts(decoder, None, seed) for token in prompt]
    return [ids[i % len(ids)] for i in range(length)]


def tokens_held(decoder: Decoder, context: Sequence[int]) -> int:
    """Tokens that a row holds before its output: those of the prompt, unless that is a source."""
    return len(decoder.manifest.decoder_start_ids) or len(context)


def _given_ids(decoder: Decoder, texts: Sequence[str]) -> list[list[int]]:
    if decoder.tokenizer is None:
        raise ConfigError("prompts as text need a bundle with a tokenizer")
    return [check_prompt(decoder.tokenizer.encode(text), decoder.manifest) for text in texts]


def _built_in_ids(decoder: Decoder) -> list[list[int]]:
    """The built-in texts, each cut to half of the capacity; those of no known token left out."""
    if decoder.tokenizer is None:
        return []
    encoded = [decoder.tokenizer.encode(text)[: _longest(decoder)] for text in BUILT_IN]
    return [ids for ids in encoded if ids]


def _longest(decoder: Decoder) -> int:
    return max(1, decoder.manifest.config.max_length // 2)
