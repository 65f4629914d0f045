"""Requests of all kinds for the scheduler's tests, and what each gives alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from spec_compile.runtime.api import Decoder

MAX_SEED = 1000


def mixed_requests(
    count: int, *, vocab_size: int, longest: int, seed: int, samples: bool = True
) -> list[tuple[list[int], dict[str, Any]]]:
    """`count` prompts and options: lengths, temperatures, filters, seeds, budgets all differ.

    Args:
        count: requests.
        vocab_size: tokens are 1..vocab_size - 1.
        longest: of a prompt, in tokens.
        seed: of the requests.
        samples: False gives greedy requests.
    """
    rng = np.random.default_rng(seed)
    requests = []
    for number in range(count):
        prompt = rng.integers(1, vocab_size, int(rng.integers(1, longest + 1))).tolist()
        options: dict[str, Any] = {
            "max_new_tokens": int(rng.integers(1, 20)),
            "seed": int(rng.integers(MAX_SEED)),
            "ignore_eos": bool(number % 3 == 0),
        }
        if samples:
            options |= {
                "temperature": float(rng.choice([0.0, 0.5, 1.0, 1.7])),
                "top_k": int(rng.choice([0, 0, 3])),
                "top_p": float(rng.choice([1.0, 0.8])),
                "min_p": float(rng.choice([0.0, 0.05])),
            }
        requests.append((prompt, options))
    return requests


def alone(decoder: Decoder, requests: list[tuple[list[int], dict[str, Any]]]) -> list[Any]:
    """(tokens, reason) of each request in a run of its own."""
    results = [decoder.generate(prompt, **options) for prompt, options in requests]
    return [(result.token_ids, result.finish_reason) for result in results]
