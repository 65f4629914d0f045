"""Cost of the acceptance tail on ONNX Runtime: sampling transforms and rejection, no model.

    python benchmarks/tail_cost.py [--vocab-size 49152] [--profile top-p]

Prints the median and the minimum of many calls per setting, all in one interleaved run, for one
row of k + 1 positions. `--profile` adds the time of each graph node in that setting.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from torch import Tensor, nn

from spec_compile.acceptance import RULES
from spec_compile.runtime.engines.onnxruntime import session_options
from spec_compile.sampling import Sampling, process_logits

# temperature, top_k, top_p, min_p; the peaked laws have most of their mass on a few tokens.
SETTINGS: dict[str, tuple[float, int, float, float]] = {
    "plain": (1.0, 0, 1.0, 0.0),
    "temperature": (0.7, 0, 1.0, 0.0),
    "greedy": (0.0, 0, 1.0, 0.0),
    "min-p": (1.0, 0, 1.0, 0.05),
    "top-k": (1.0, 50, 1.0, 0.0),
    "top-p": (0.7, 0, 0.9, 0.0),
    "top-k + top-p": (0.7, 50, 0.9, 0.0),
}
NAMES = (
    "logits",
    "draft_tokens",
    "draft_probs",
    "uniforms",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
)


class Tail(nn.Module):
    """Everything after the target's head."""

    def forward(
        self,
        logits: Tensor,
        draft_tokens: Tensor,
        draft_probs: Tensor,
        uniforms: Tensor,
        *options: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Logits [B, k + 1, V] and a draft to output tokens."""
        target_probs = process_logits(logits, Sampling(*options))
        return RULES["rejection"](draft_tokens, draft_probs, target_probs, uniforms)


def build(vocab_size: int, k: int) -> bytes:
    """The tail as a serialised ONNX model with symbolic rows."""
    draft = torch.zeros(2, k, dtype=torch.int64), torch.zeros(2, k, vocab_size)
    options = torch.ones(2), torch.ones(2, dtype=torch.int64), torch.ones(2), torch.ones(2)
    rows = {0: torch.export.Dim("B")}
    program = torch.onnx.export(
        Tail().eval(),
        (torch.zeros(2, k + 1, vocab_size), *draft, torch.zeros(2, k + 1), *options),
        dynamic_shapes=(rows, rows, rows, rows, (rows,) * 4),
        input_names=list(NAMES),
        opset_version=24,
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    model: bytes = program.model_proto.SerializeToString()
    return model


def open_session(model: bytes, threads: int, profile: str | None) -> Any:
    """An ONNX Runtime CPU session over `model`."""
    options = session_options(ort, threads)
    if profile:
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(tempfile.mkdtemp()) / "tail")
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def feeds(vocab_size: int, k: int, rng: np.random.Generator) -> dict[str, Any]:
    """Logits with a Zipf-like peak, and a draft that is often accepted."""
    logits = rng.standard_normal((1, k + 1, vocab_size)).astype(np.float32)
    ranks = np.argsort(rng.random(logits.shape), axis=-1) + 1
    logits -= 1.6 * np.log(ranks).astype(np.float32)
    noisy = logits[:, :k] + 0.3 * rng.standard_normal(logits[:, :k].shape).astype(np.float32)
    draft_probs = torch.from_numpy(noisy).float().softmax(-1).numpy()
    return {
        "logits": logits,
        "draft_tokens": draft_probs.argmax(-1),
        "draft_probs": draft_probs,
        "uniforms": rng.random((1, k + 1), dtype=np.float32),
    }


def with_options(feed: dict[str, Any], name: str) -> dict[str, Any]:
    """The same inputs under another sampling setting."""
    temperature, top_k, top_p, min_p = SETTINGS[name]
    return {
        **feed,
        "temperature": np.array([temperature], np.float32),
        "top_k": np.array([top_k], np.int64),
        "top_p": np.array([top_p], np.float32),
        "min_p": np.array([min_p], np.float32),
    }


def measure(session: Any, feed: dict[str, Any], names: list[str], calls: int) -> dict[str, Any]:
    """Milliseconds per call of each setting, the settings taking turns."""
    times: dict[str, list[float]] = defaultdict(list)
    prepared = {name: with_options(feed, name) for name in names}
    for name in names * 5:
        session.run(None, prepared[name])
    for _ in range(calls):
        for name in names:
            session.run(None, prepared[name])
            start = time.perf_counter()
            session.run(None, prepared[name])
            times[name].append((time.perf_counter() - start) * 1e3)
    return {
        name: {"median_ms": statistics.median(values), "min_ms": min(values)}
        for name, values in times.items()
    }


def node_times(session: Any) -> list[tuple[str, float]]:
    """Median microseconds of each node, slowest first."""
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    times: dict[str, list[int]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            times[event["name"].removesuffix("_kernel_time")].append(event["dur"])
    medians = ((name, statistics.median(values)) for name, values in times.items())
    return sorted(medians, key=lambda item: -item[1])


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="cost of the acceptance tail on ONNX Runtime")
    parser.add_argument("--vocab-size", type=int, default=49_152)
    parser.add_argument("-k", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--profile", choices=SETTINGS)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    session = open_session(build(args.vocab_size, args.k), args.threads, args.profile)
    feed = feeds(args.vocab_size, args.k, np.random.default_rng(0))
    names = [args.profile] if args.profile else list(SETTINGS)
    results = measure(session, feed, names, args.calls)
    if args.json:
        print(json.dumps(results, indent=1))
        return 0
    for name, row in results.items():
        print(f"{name:15s} median {row['median_ms']:.3f} ms   min {row['min_ms']:.3f} ms")
    for node, microseconds in node_times(session)[:25] if args.profile else []:
        print(f"  {microseconds:8.1f} us  {node}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
