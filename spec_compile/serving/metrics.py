"""Prometheus text: what the scheduler counted, and how long requests took.

Names are vLLM's where it has one, so that its dashboards work; others begin with `spec_compile:`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from spec_compile.runtime.api import GenerationResult
from spec_compile.runtime.scheduler import Scheduler

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TTFT_BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 20.0)
_TIME_BOUNDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
Labels = Mapping[str, str]


class Histogram:
    """A cumulative histogram; used by one thread.

    Args:
        bounds: upper ends of its buckets, ascending; the last bucket has none.
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * len(bounds)
        self._count, self._sum = 0, 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._count += 1
        self._sum += value
        for place, bound in enumerate(self._bounds):
            self._counts[place] += value <= bound

    def lines(self, name: str, labels: Labels) -> Iterator[str]:
        """Its samples."""
        for bound, count in zip(self._bounds, self._counts, strict=True):
            yield _sample(f"{name}_bucket", {**labels, "le": f"{bound:g}"}, count)
        yield _sample(f"{name}_bucket", {**labels, "le": "+Inf"}, self._count)
        yield _sample(f"{name}_sum", labels, self._sum)
        yield _sample(f"{name}_count", labels, self._count)


class Metrics:
    """All metrics of one server.

    Args:
        scheduler: counts rounds and tokens.
        model_name: the label `model_name`.
    """

    def __init__(self, scheduler: Scheduler, model_name: str) -> None:
        self._scheduler, self._labels = scheduler, {"model_name": model_name}
        self._ttft, self._latency = Histogram(_TTFT_BOUNDS), Histogram(_TIME_BOUNDS)
        self._answers: dict[int, int] = {}

    def observe(self, result: GenerationResult) -> None:
        """Note an output that has ended."""
        if result.stats.num_rounds:
            self._ttft.observe(result.stats.ttft_ms / 1000.0)
            self._latency.observe(result.stats.wall_ms / 1000.0)

    def answered(self, status: int) -> None:
        """Note an HTTP answer."""
        self._answers[status] = self._answers.get(status, 0) + 1

    def text(self) -> str:
        """The exposition, format 0.0.4."""
        return "\n".join([*self._lines(), ""])

    def _lines(self) -> Iterator[str]:
        now, labels = self._scheduler.snapshot(), self._labels
        gauges = {
            "vllm:num_requests_running": ("Requests that sit in slots.", now.running),
            "vllm:num_requests_waiting": ("Requests in the queue.", now.waiting),
            "spec_compile:slots": ("Requests that can be served at a time.", self.num_slots),
        }
        for name, (about, value) in gauges.items():
            yield from _head(name, about, "gauge")
            yield _sample(name, labels, value)
        counters = {
            "vllm:prompt_tokens": ("Tokens of prompts.", now.num_prompt_tokens),
            "vllm:generation_tokens": ("Tokens generated.", now.num_emitted_tokens),
            "vllm:spec_decode_num_drafts": ("Drafts that were verified.", now.num_drafts),
            "vllm:spec_decode_num_draft_tokens": ("Draft tokens.", now.num_draft_tokens),
            "vllm:spec_decode_num_accepted_tokens": (
                "Draft tokens that were accepted.",
                now.num_accepted_tokens,
            ),
        }
        for name, (about, value) in counters.items():
            yield from _counter(name, about, [(labels, value)])
        by_place = [
            ({**labels, "position": str(place)}, count)
            for place, count in enumerate(now.accepted_per_position)
        ]
        name = "vllm:spec_decode_num_accepted_tokens_per_pos"
        yield from _counter(name, "Accepted draft tokens by their place in the draft.", by_place)
        by_reason = [
            ({**labels, "finished_reason": reason}, count) for reason, count in now.finished.items()
        ]
        yield from _counter("vllm:request_success", "Requests by how they ended.", by_reason)
        answers = [
            ({**labels, "status": str(status)}, count)
            for status, count in sorted(self._answers.items())
        ]
        yield from _counter("spec_compile:http_responses", "Answers by status.", answers)
        for name, about, histogram in (
            (
                "vllm:time_to_first_token_seconds",
                "From submission to the first tokens.",
                self._ttft,
            ),
            ("vllm:e2e_request_latency_seconds", "From submission to the end.", self._latency),
        ):
            yield from _head(name, about, "histogram")
            yield from histogram.lines(name, labels)

    @property
    def num_slots(self) -> int:
        """Slots of the scheduler."""
        return self._scheduler.num_slots


def _counter(name: str, about: str, samples: Sequence[tuple[Labels, int]]) -> Iterator[str]:
    yield from _head(f"{name}_total", about, "counter")
    for labels, value in samples:
        yield _sample(f"{name}_total", labels, value)


def _head(name: str, about: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"


def _sample(name: str, labels: Labels, value: float) -> str:
    pairs = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
    return f"{name}{{{pairs}}} {value}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
