"""Load on a server through OpenAI's own client: throughput and latency by number of streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from openai import AsyncOpenAI

from benchmarks.figures.report import Cell
from benchmarks.service.process import MODEL

COLUMNS = (
    "streams",
    "speculation",
    "tokens/s",
    "TTFT p50 (ms)",
    "TTFT p99 (ms)",
    "TPOT p50 (ms)",
    "TPOT p99 (ms)",
)


@dataclass(frozen=True)
class Work:
    """Requests of one measurement, the same for every setting.

    Args:
        prompts: one a request; request i draws from seed i.
        max_tokens: every answer has as many tokens.
        temperature: of all.
    """

    prompts: Sequence[str]
    max_tokens: int
    temperature: float


@dataclass
class Measured:
    """One pass over the work at one setting."""

    streams: int
    speculative: bool
    seconds: float = 0.0
    num_tokens: int = 0
    ttft_ms: list[float] = field(default_factory=list)
    tpot_ms: list[float] = field(default_factory=list)

    def add(self, other: Measured) -> None:
        """Pool another pass at the same setting."""
        self.seconds += other.seconds
        self.num_tokens += other.num_tokens
        self.ttft_ms += other.ttft_ms
        self.tpot_ms += other.tpot_ms

    def row(self) -> list[Cell]:
        """Cells of `COLUMNS`."""
        ttft, tpot = (np.percentile(v, [50, 99]).tolist() for v in (self.ttft_ms, self.tpot_ms))
        speed = self.num_tokens / self.seconds
        return [self.streams, "on" if self.speculative else "off", speed, *ttft, *tpot]


def measure(url: str, work: Work, streams: Sequence[int], *, repeat: int = 1) -> list[Measured]:
    """Every setting, in turn, `repeat` times after a warm-up; passes of a setting are pooled.

    Args:
        url: of the server's API.
        work: what each pass requests.
        streams: numbers of requests at a time.
        repeat: measured passes.
    """
    return asyncio.run(_measure(url, work, streams, repeat))


async def _measure(url: str, work: Work, streams: Sequence[int], repeat: int) -> list[Measured]:
    settings = [(count, speculative) for count in streams for speculative in (True, False)]
    pooled = [Measured(*setting) for setting in settings]
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=600) as client:
        for speculative in (True, False):  # opens graphs, and lets the caches' pages come in
            await _pass(client, work, max(streams), speculative)
        for _ in range(repeat):
            for one, (count, speculative) in zip(pooled, settings, strict=True):
                one.add(await _pass(client, work, count, speculative))
    return pooled


async def _pass(client: AsyncOpenAI, work: Work, streams: int, speculative: bool) -> Measured:
    measured, left = Measured(streams, speculative), iter(enumerate(work.prompts))

    async def stream() -> None:
        for seed, prompt in left:
            await _complete(client, work, prompt, seed, measured)

    started = time.perf_counter()
    await asyncio.gather(*(stream() for _ in range(streams)))
    measured.seconds = time.perf_counter() - started
    return measured


async def _complete(
    client: AsyncOpenAI, work: Work, prompt: str, seed: int, measured: Measured
) -> None:
    started, times, num_tokens = time.perf_counter(), list[float](), 0
    stream = await client.completions.create(
        model=MODEL,
        prompt=prompt,
        max_tokens=work.max_tokens,
        temperature=work.temperature,
        seed=seed,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True, "speculative": measured.speculative},
    )
    async for event in stream:
        if event.usage is not None:
            num_tokens = event.usage.completion_tokens
        if any(choice.text for choice in event.choices):
            times.append(time.perf_counter())
    measured.num_tokens += num_tokens
    if times:
        measured.ttft_ms.append(1000.0 * (times[0] - started))
        measured.tpot_ms.append(1000.0 * (times[-1] - times[0]) / max(num_tokens - 1, 1))
