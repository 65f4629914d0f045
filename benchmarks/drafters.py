"""Prompt lookup and adaptive drafting in figures: each way of decoding against target-only.

    python benchmarks/drafters.py BUNDLE... [--tokens N] [--repeat N] [--temperature F]
        [--prompt-file F] [--num-threads N]

Per bundle: tokens/s of target-only, speculative and (where rounds may have any length) adaptive
decoding, interleaved; what one call of `verify` takes at every number of draft tokens; and the
host's time to find a proposal in a text of 4,000 tokens.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from spec_compile.bench import BenchOptions, bench_bundles
from spec_compile.runtime.api import Decoder, load
from spec_compile.runtime.batch import Batch
from spec_compile.runtime.calls import PROMPT, GraphCall, cache_buffers, output_buffers
from spec_compile.runtime.prompt_lookup import NgramIndex
from spec_compile.runtime.requests import GenerationOptions

_CONTEXT, _RUNS = 64, 60


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundles", nargs="+", metavar="BUNDLE")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--num-threads", type=int, metavar="N", help="threads of the engine")
    parser.add_argument("--prompt-file", metavar="F", help="one prompt; default the built-in ones")
    args = parser.parse_args(arguments)
    for path in args.bundles:
        for line in figures(path, args):
            print(line)
    print(f"prompt lookup: {lookup_time() * 1000:.1f} us a round")


def figures(path: str, args: argparse.Namespace) -> Iterator[str]:
    """Lines about a bundle."""
    decoder = load(path, num_threads=args.num_threads)
    verify = decoder.manifest.graphs.get("verify")
    any_length = verify is not None and verify.takes_any_length
    options = BenchOptions(
        prompts=[Path(args.prompt_file).read_text("utf-8")] if args.prompt_file else None,
        max_new_tokens=args.tokens,
        repeat=args.repeat,
        temperatures=[args.temperature],
        memory=False,
        num_threads=args.num_threads,
        adaptive=any_length,
    )
    for one in bench_bundles([path], options)["results"]:
        yield (
            f"{path} {one['mode']}: {one['tokens_per_second']:.1f} tokens/s, "
            f"{one['speed_up']:.2f}x, accepted {one['acceptance_rate']:.2f}, "
            f"{one['block_efficiency']:.2f} tokens a round"
        )
    if any_length:
        for length, milliseconds in enumerate(verify_times(decoder)):
            yield f"{path} verify, {length} draft tokens: {milliseconds:.3f} ms"


def verify_times(decoder: Decoder) -> list[float]:
    """Median milliseconds of `verify` over 0 .. k draft tokens, taken in turn, one row."""
    manifest = decoder.manifest
    graph, k = manifest.graphs["verify"], manifest.config.num_speculative_tokens
    prompt = list(range(1, _CONTEXT))
    batch = Batch([prompt], GenerationOptions(), [0], manifest.config.max_length)
    tensors = {**batch.sampling, **cache_buffers(decoder.engine, graph, 1)}
    for name in ("uniforms", "draft_probs"):
        if (tensor := graph.input(name)) is not None:
            sizes = [1, *(int(size) for size in tensor.shape[1:])]
            tensors[name] = np.full(sizes, 0.5, dtype=np.float32)
    call = GraphCall(decoder.engine, "verify", batch, tensors)
    buffers = {
        length: output_buffers(decoder.engine, graph, 1, length=length)
        | {"draft_tokens": np.ones((1, length), dtype=np.int64)}
        for length in range(k + 1)
    }
    call.run(PROMPT, 0, buffers[0])
    times: list[list[float]] = [[] for _ in buffers]
    for _ in range(_RUNS):
        for length, tensors in buffers.items():
            started = time.perf_counter()
            call.run(1, length, tensors)
            times[length].append(1000.0 * (time.perf_counter() - started))
    return [statistics.median(each) for each in times]


def lookup_time() -> float:
    """Median milliseconds to take in three tokens and propose eight, behind 4,000 others."""
    index, rng = NgramIndex(2, 3), np.random.default_rng(0)
    index.extend(rng.integers(0, 200, 4000).tolist())
    times = []
    for _ in range(300):
        tokens = rng.integers(0, 200, 3).tolist()
        started = time.perf_counter()
        index.extend(tokens)
        index.propose(8)
        times.append(1000.0 * (time.perf_counter() - started))
    return statistics.median(times)


if __name__ == "__main__":
    main()
