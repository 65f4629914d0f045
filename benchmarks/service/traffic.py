"""Random requests for a server, and what each gives in a run of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.service.process import MODEL
from spec_compile.prompts import BUILT_IN
from spec_compile.runtime.api import Decoder

_MAX_SEED = 2**31


@dataclass(frozen=True)
class Request:
    """One request: to a server as `body`, to a decoder as `prompt` and `options`."""

    prompt: str | list[int]
    options: dict[str, Any]
    text: str  # of a run of its own
    num_tokens: int
    finish_reason: str

    @property
    def body(self) -> dict[str, Any]:
        """The JSON of `/v1/completions`, streamed."""
        options = dict(self.options)
        return {
            "model": MODEL,
            "prompt": self.prompt,
            "max_tokens": options.pop("max_new_tokens"),
            **options,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


def random_requests(decoder: Decoder, count: int, *, max_tokens: int, seed: int) -> list[Request]:
    """`count` requests whose prompts, lengths, seeds and options differ, with their single runs.

    Args:
        decoder: of the bundle that is served.
        count: requests.
        max_tokens: most tokens of an answer.
        seed: of the requests.
    """
    rng = np.random.default_rng(seed)
    requests = []
    for _ in range(count):
        prompt = _prompt(decoder, rng, max_tokens)
        options = _options(decoder, rng, max_tokens)
        result = decoder.generate(prompt, **options)
        reason = {"eos": "stop", "stop": "stop"}.get(result.finish_reason, "length")
        text = result.text or ""
        requests.append(Request(prompt, options, text, len(result.token_ids), reason))
    return requests


def reproduced_beside_others(
    decoder: Decoder, request: Request, text: str, others: Sequence[Request]
) -> bool:
    """Whether `text` is what the decoder itself gives where the request is not alone.

    Larger products may round otherwise, which turns a near tie. Rows of a batch share their
    options, not their prompts and seeds.
    """
    size = decoder.manifest.config.batch_size
    options = {name: value for name, value in request.options.items() if name != "seed"}
    for rows in range(2, size + 1):
        for first in range(0, len(others), size):
            company = [*others[first : first + rows - 1]]
            prompts = [_ids(decoder, one.prompt) for one in (request, *company)]
            seeds = [one.options["seed"] for one in (request, *company)]
            results = decoder.generate(prompts, seed=seeds, **options)
            if results[0].text == text:
                return True
    return False


def _ids(decoder: Decoder, prompt: str | list[int]) -> list[int]:
    if isinstance(prompt, list):
        return prompt
    assert decoder.tokenizer is not None
    return decoder.tokenizer.encode(prompt)


def _prompt(decoder: Decoder, rng: np.random.Generator, max_tokens: int) -> str | list[int]:
    """A text, a part of one, or token ids up to half of what the bundle holds."""
    config, vocab_size = decoder.manifest.config, decoder.manifest.vocab_size
    if rng.random() < 0.5:
        text = str(rng.choice(np.array(BUILT_IN)))
        text = text[: int(rng.integers(1, len(text) + 1))]
        if len(_ids(decoder, text)) < config.max_length - max_tokens:
            return text
    longest = max(1, (config.max_length - max_tokens) // 2)
    found: list[int] = rng.integers(1, vocab_size, int(rng.integers(1, longest + 1))).tolist()
    return found


def _options(decoder: Decoder, rng: np.random.Generator, max_tokens: int) -> dict[str, Any]:
    options: dict[str, Any] = {
        "max_new_tokens": int(rng.integers(1, max_tokens + 1)),
        "seed": int(rng.integers(_MAX_SEED)),
        "temperature": 0.0,
    }
    if decoder.manifest.config.samples:
        options["temperature"] = float(rng.choice([0.0, 0.5, 1.0]))
        options["top_p"] = float(rng.choice([1.0, 0.9]))
        options["top_k"] = int(rng.choice([0, 50]))
    if rng.random() < 0.2:
        options["stop"] = ["\n"]
    if rng.random() < 0.3:
        options["ignore_eos"] = True
    if rng.random() < 0.1:
        options["speculative"] = False
    return options
