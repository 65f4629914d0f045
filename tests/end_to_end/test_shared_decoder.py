"""Captured models side by side: each request gives the tokens of a run alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spec_compile.config import SpecConfig
from spec_compile.runtime.api import Decoder
from spec_compile.runtime.requests import GenerationOptions
from spec_compile.runtime.shared_decoder import Prepared, SharedDecoder
from tests.end_to_end.conftest import MAX_LENGTH, V
from tests.helpers.workload import alone, mixed_requests

Bundles = Callable[[str, SpecConfig], Decoder]


def _config(acceptance: str, fusion: str, k: int, num_drafts: int = 1) -> SpecConfig:
    return SpecConfig(
        num_speculative_tokens=k,
        acceptance=acceptance,
        fusion=fusion,
        num_drafts=num_drafts,
        max_length=MAX_LENGTH,
        batch_size=4,
    )


CONFIGS = [
    _config("rejection", "verify", 4),
    _config("rejection", "step", 2),
    _config("kseq", "verify", 3, 3),
    pytest.param(_config("kseq", "step", 3, 3), marks=pytest.mark.slow),
    pytest.param(_config("greedy", "verify", 3), marks=pytest.mark.slow),
]


@pytest.mark.parametrize(
    "config", CONFIGS, ids=lambda c: f"{c.acceptance}-{c.fusion}-k{c.num_speculative_tokens}"
)
def test_each_request_as_if_alone(bundles: Bundles, config: SpecConfig) -> None:
    plain = bundles("good", config)
    samples = config.acceptance != "greedy"
    requests = mixed_requests(24, vocab_size=V, longest=MAX_LENGTH - 1, seed=6, samples=samples)
    for number, (_, options) in enumerate(requests):
        options["speculative"] = number % 5 != 0
    with SharedDecoder(
        plain.bundle, plain.engine, plain.tokenizer, num_slots=4, prefill_chunk=6
    ) as shared:
        assert _together(shared, requests) == alone(plain, requests)


def test_adaptive_requests(bundles: Bundles) -> None:
    """By the rule `match`, how many tokens a round verifies decides about its speed alone."""
    plain = bundles("good", _config("match", "verify", 3))
    requests = mixed_requests(24, vocab_size=V, longest=MAX_LENGTH - 1, seed=8)
    expected = alone(plain, requests)
    for number, (_, options) in enumerate(requests):
        options["adaptive"] = number % 3 > 0
    with SharedDecoder(
        plain.bundle, plain.engine, plain.tokenizer, num_slots=4, prefill_chunk=6
    ) as shared:
        assert _together(shared, requests) == expected


def _together(shared: SharedDecoder, requests: list[tuple[list[int], dict[str, Any]]]) -> list[Any]:
    tickets = []
    for prompt, options in requests:
        parsed = GenerationOptions(**options)
        tickets += shared.submit(Prepared([prompt], parsed, parsed.row_seeds(1)))
    for ticket in tickets:
        for _ in ticket.follow():
            pass
    return [(tuple(t.row.token_ids), t.row.finish_reason) for t in tickets]
