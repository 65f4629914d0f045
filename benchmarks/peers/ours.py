"""Worker of spec-compile: bundles through `spec_compile.load(...).generate`, and their graphs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from benchmarks.figures.graph_calls import Arrays, verify_arrays, zeros
from benchmarks.peers.task import PLAIN, SELF, SPECULATIVE, Task
from benchmarks.peers.worker import Generate, NotAvailable, Output, serve
from spec_compile.benchmarking.machine import versions
from spec_compile.checking.contexts import long_context
from spec_compile.runtime.api import Decoder, load
from spec_compile.runtime.engine import Run

_FLAGS = {SPECULATIVE: "--bundle", SELF: "--self-bundle"}


class Ours:
    """Bundles of one target: `task.bundles` has one for each mode of speculation."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._open = {
            mode: load(folder, num_threads=task.num_threads)
            for mode, folder in task.bundles.items()
        }
        if SPECULATIVE not in self._open:
            raise NotAvailable("no bundle given")
        for decoder in self._open.values():
            _check(decoder, task)

    def versions(self) -> Mapping[str, str]:
        """Packages and their versions."""
        return versions()

    def notes(self) -> str:
        """What the peer was told, in one line."""
        config = self._open[SPECULATIVE].manifest.config
        return f"backend {config.backend}, fusion {config.fusion}, rule {config.acceptance}"

    def open(self, mode: str) -> Generate:
        """Load what a mode needs; see `Peer.open`."""
        wanted = SPECULATIVE if mode == PLAIN else mode
        if wanted not in self._open:
            raise NotAvailable(f"no {_FLAGS[wanted]} given")
        decoder, task = self._open[wanted], self._task

        def generate(prompt: Sequence[int], max_new_tokens: int) -> Output:
            result = decoder.generate(
                list(prompt),
                max_new_tokens=max_new_tokens,
                temperature=task.temperature,
                seed=task.seed,
                ignore_eos=True,
                speculative=mode != PLAIN,
            )
            return Output(result.token_ids, result.stats.num_rounds)

        return generate

    def close(self) -> None:
        """Nothing outlives this process."""

    def calls(self, num_tokens: int) -> Iterator[float]:
        """The `target` graph for one token, the `verify` graph, acceptance included, for k + 1."""
        decoder, task = self._open[SPECULATIVE], self._task
        graphs = decoder.manifest.graphs
        if "verify" not in graphs:
            raise NotAvailable("the bundle has no verify graph (another fusion)")
        context = long_context(decoder, task.valid + 1, task.seed)
        if num_tokens == 1:
            name, arrays = "target", _target_arrays(decoder, context)
        else:
            name, arrays = "verify", verify_arrays(decoder, context, task.num_threads)
        if "temperature" in arrays:
            arrays["temperature"] = np.array([task.temperature], dtype=np.float32)
        run = _bind(decoder, name, arrays)
        while True:
            started = time.perf_counter()
            run()
            yield 1000.0 * (time.perf_counter() - started)


def _target_arrays(decoder: Decoder, context: Sequence[int]) -> Arrays:
    """Inputs of a `target` call after all of `context` but its last token, which is the new one."""
    arrays = zeros(decoder.manifest.graphs["target"].inputs, len(context))
    arrays["tokens"][0], arrays["num_new"][0] = context, len(context)
    if "top_p" in arrays:
        arrays["top_p"][0] = 1.0
    _bind(decoder, "target", arrays)()
    return arrays | {
        "tokens": np.array([[context[-1]]], dtype=np.int64),
        "num_new": np.array([1], dtype=np.int64),
        "lengths": np.array([len(context) - 1], dtype=np.int64),
    }


def _bind(decoder: Decoder, name: str, arrays: Arrays) -> Run:
    """A call of a graph into outputs of its own, without `logits`, as the runtime binds it."""
    graph = decoder.manifest.graphs[name]
    outputs = [one for one in graph.outputs if one.alias_of is None and one.name != "logits"]
    num_draft_tokens = decoder.manifest.config.num_speculative_tokens
    return decoder.engine.bind(name, arrays | zeros(outputs, 1, num_draft_tokens))


def _check(decoder: Decoder, task: Task) -> None:
    config = decoder.manifest.config
    if config.num_speculative_tokens != task.num_speculative_tokens:
        raise NotAvailable(
            f"{decoder.bundle.folder} has k = {config.num_speculative_tokens}, "
            f"not {task.num_speculative_tokens}"
        )
    needed = max(len(prompt) for prompt in task.prompts) + task.max_new_tokens
    if needed > config.max_length:
        raise NotAvailable(
            f"{decoder.bundle.folder} holds {config.max_length} tokens, {needed} are needed"
        )


if __name__ == "__main__":
    serve(Ours)
