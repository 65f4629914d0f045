"""Many streams at once for a long time: is any answer lost, mixed up, or slow to come?"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.service.process import MemoryLog, ServerProcess
from benchmarks.service.stream import Outcome, complete
from benchmarks.service.traffic import Request, random_requests, reproduced_beside_others
from spec_compile.runtime.api import Decoder, load

_GRACE = 600.0  # seconds that requests under way get at the end
_SHOWN = 10  # of each kind of trouble


@dataclass(frozen=True)
class Plan:
    """What to do.

    Args:
        streams: at a time.
        seconds: after which no request is sent any more.
        most_requests: of all streams together.
        distinct: different requests; each is sent again and again.
        max_tokens: most tokens of an answer.
        leaving: share of the requests that are cancelled.
        slots: of the server.
        num_threads: of one graph call; None is the engine's choice.
        seed: of everything that is random.
    """

    streams: int = 200
    seconds: float = 600.0
    most_requests: int = 1_000_000
    distinct: int = 300
    max_tokens: int = 64
    leaving: float = 0.2
    slots: int = 16
    num_threads: int | None = None
    seed: int = 0

    @property
    def server_arguments(self) -> list[str]:
        """Limits of the server that fit."""
        room = str(self.streams + 16)
        arguments = ["--slots", str(self.slots), "--max-queue", room, "--max-concurrency", room]
        threads = [] if self.num_threads is None else ["--num-threads", str(self.num_threads)]
        return [*arguments, "--request-seconds", "3600", *threads]


@dataclass
class Tally:
    """What has come of all requests.

    Attributes:
        counts: requests `sent`, `finished`, `left` by their client, and `rounded`: another answer
            than alone, but the decoder's own beside other rows.
        lost: what became of requests that neither finished nor were left.
        wrong: answers that are no run of theirs.
    """

    counts: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    wrong: list[dict[str, Any]] = field(default_factory=list)
    ttft_ms: list[float] = field(default_factory=list)
    tpot_ms: list[float] = field(default_factory=list)
    num_tokens: int = 0
    suspects: list[tuple[int, Outcome]] = field(default_factory=list, repr=False)

    def add(self, number: int, request: Request, outcome: Outcome) -> None:
        """Take a request's outcome."""
        self.counts["sent"] += 1
        if outcome.ttft_ms is not None:
            self.ttft_ms.append(outcome.ttft_ms)
        if outcome.error or not (outcome.left or outcome.finish_reason):
            self.lost.append(outcome.error or "the stream ended without a reason")
            return
        self.counts["left" if outcome.left else "finished"] += 1
        if outcome.left:
            right = request.text.startswith(outcome.text)
        else:
            self.num_tokens += outcome.num_tokens
            right = (request.text, request.num_tokens, request.finish_reason) == (
                outcome.text,
                outcome.num_tokens,
                outcome.finish_reason,
            )
            if outcome.tpot_ms is not None:
                self.tpot_ms.append(outcome.tpot_ms)
        if not right:
            self.suspects.append((number, outcome))

    def judge(self, decoder: Decoder, requests: Sequence[Request]) -> None:
        """Tell answers that rounding explains from wrong ones."""
        for number, outcome in self.suspects:
            request = requests[number]
            others = [one for one in requests if one is not request][:32]
            if not outcome.left and reproduced_beside_others(
                decoder, request, outcome.text, others
            ):
                self.counts["rounded"] += 1
                continue
            self.wrong.append(
                {"request": request.body, "alone": request.text, "answer": asdict(outcome)}
            )
        self.suspects.clear()


@dataclass(frozen=True)
class SoakReport:
    """The figures of a soak."""

    plan: Plan
    tally: Tally
    seconds: float
    memory: Sequence[tuple[float, float]]
    memory_slope: float
    complaints: Sequence[str]
    exit_code: int

    @property
    def passed(self) -> bool:
        """Whether nothing was lost, mixed up or complained about."""
        return not (self.tally.lost or self.tally.wrong or self.complaints or self.exit_code)

    def rows(self) -> list[tuple[str, str]]:
        """Name and value of each figure."""
        counts, tally = self.tally.counts, self.tally
        sizes = [size for _, size in self.memory]
        return [
            ("streams at a time, slots", f"{self.plan.streams}, {self.plan.slots}"),
            ("minutes", f"{self.seconds / 60:.1f}"),
            (
                "requests, finished, left by their client",
                f"{counts['sent']:,}, {counts['finished']:,}, {counts['left']:,}",
            ),
            ("lost, mixed up", f"{len(tally.lost)}, {len(tally.wrong)}"),
            ("rounded otherwise beside other rows", f"{counts['rounded']}"),
            ("tokens per second", f"{tally.num_tokens / max(self.seconds, 1e-9):.0f}"),
            ("TTFT p50, p99 (ms)", _percentiles(tally.ttft_ms)),
            ("time per token p50, p99 (ms)", _percentiles(tally.tpot_ms)),
            (
                "server memory: first, last, most (MiB)",
                f"{sizes[0]:.0f}, {sizes[-1]:.0f}, {max(sizes):.0f}" if sizes else "-",
            ),
            ("slope of its memory, in the second half (MiB/min)", f"{self.memory_slope:.2f}"),
            ("complaints in its log, exit code", f"{len(self.complaints)}, {self.exit_code}"),
        ]

    def data(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        tally = {
            "counts": dict(self.tally.counts),
            "lost": self.tally.lost[:_SHOWN],
            "wrong": self.tally.wrong[:_SHOWN],
            "num_tokens": self.tally.num_tokens,
        }
        return {
            "plan": asdict(self.plan),
            "passed": self.passed,
            "figures": dict(self.rows()),
            **tally,
            "memory_mib": [(round(s, 1), round(size, 1)) for s, size in self.memory],
            "complaints": list(self.complaints),
        }


def soak(bundle: Path, plan: Plan) -> SoakReport:
    """Start a server, load it, end it, and compare."""
    decoder = load(bundle, num_threads=plan.num_threads)
    requests = random_requests(decoder, plan.distinct, max_tokens=plan.max_tokens, seed=plan.seed)
    tally = Tally()
    server = ServerProcess(bundle, plan.server_arguments)
    with server, MemoryLog(server, max(plan.seconds / 600, 0.1)) as memory:
        started = time.monotonic()
        try:
            asyncio.run(_load(server.url, requests, plan, tally))
        except TimeoutError:
            tally.lost.append("requests under way did not end in time")
        seconds = time.monotonic() - started
    exit_code = server.stop()
    tally.judge(decoder, requests)
    return SoakReport(
        plan, tally, seconds, memory.samples, memory.slope(), server.complaints, exit_code
    )


async def _load(url: str, requests: Sequence[Request], plan: Plan, tally: Tally) -> None:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=plan.streams)
    ends = time.monotonic() + plan.seconds
    async with (
        asyncio.timeout(plan.seconds + _GRACE),
        httpx.AsyncClient(base_url=url, limits=limits, timeout=plan.seconds + _GRACE) as client,
    ):

        async def stream(number: int) -> None:
            rng = np.random.default_rng([plan.seed, number])
            share = plan.most_requests // plan.streams
            for _ in range(share):
                if time.monotonic() >= ends:
                    return
                chosen = int(rng.integers(len(requests)))
                request = requests[chosen]
                leaves = rng.random() < plan.leaving
                pieces = int(rng.integers(0, 12)) if leaves else None
                tally.add(chosen, request, await complete(client, request.body, pieces))

        await asyncio.gather(*(stream(number) for number in range(plan.streams)))


def _percentiles(values: Sequence[float]) -> str:
    if not values:
        return "-"
    middle, high = np.percentile(values, [50, 99])
    return f"{middle:.1f}, {high:.1f}"
