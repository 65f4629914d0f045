"""Worker of llama.cpp: `llama-server` on the loopback interface, `llama-batched-bench` for calls.

Times are the server's own (prompt and generation), so that HTTP is not counted against it. EOS is
forbidden rather than made an ordinary token: the server has no other way to go on after it.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.conversion import converted, run_quietly
from benchmarks.peers.task import Task
from benchmarks.peers.worker import Generate, NotAvailable, Output, draft_of, serve

_TYPES = {"float32": "F32", "int8": "Q8_0", "int4": "Q4_0"}
_CONTEXT = 1024
_STEPS = 4
_START_SECONDS = 120
_ANSWER_SECONDS = 600


class LlamaCpp:
    """llama.cpp at one precision."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._home = Path(task.environment)
        self._servers: list[subprocess.Popen[bytes]] = []
        self._target = self._gguf(Path(task.target))

    def versions(self) -> Mapping[str, str]:
        """Packages and their versions."""
        return {"llama.cpp": (self._home / "version.txt").read_text(encoding="utf-8").strip()}

    def notes(self) -> str:
        """What the peer was told, in one line."""
        return f"{_TYPES[self._task.precision]}, llama-server, built with -march=native"

    def open(self, mode: str) -> Generate:
        """Load what a mode needs; see `Peer.open`."""
        draft = draft_of(self._task, mode)
        extra = [] if draft is None else self._draft_options(self._gguf(draft))
        address = self._start_server(extra)

        def generate(prompt: Sequence[int], max_new_tokens: int) -> Output:
            answer = _post(f"{address}/completion", self._request(prompt, max_new_tokens))
            timings = answer["timings"]
            rounds = None
            if draft is not None:
                rounds = len(answer["tokens"]) - int(timings.get("draft_n_accepted", 0))
            seconds = (timings["prompt_ms"] + timings["predicted_ms"]) / 1000.0
            return Output(answer["tokens"], rounds, seconds)

        return generate

    def close(self) -> None:
        """End the servers that this worker started."""
        for server in self._servers:
            server.terminate()
        for server in self._servers:
            server.wait(timeout=30)

    def _draft_options(self, draft: Path) -> list[str]:
        threads, k = str(self._task.num_threads), str(self._task.num_speculative_tokens)
        drafting = ["--spec-type", "draft-simple", "--spec-draft-model", str(draft)]
        how_many = ["--spec-draft-n-max", k, "--spec-draft-n-min", "0", "--spec-draft-p-min", "0"]
        return [*drafting, *how_many, "-td", threads, "-tbd", threads]

    def _request(self, prompt: Sequence[int], max_new_tokens: int) -> dict[str, Any]:
        task = self._task
        sampling: dict[str, Any] = {"temperature": task.temperature, "seed": task.seed}
        if task.temperature > 0:
            sampling |= {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
        fixed = {"cache_prompt": False, "ignore_eos": True, "return_tokens": True}
        return {"prompt": list(prompt), "n_predict": max_new_tokens, **fixed, **sampling}

    def _start_server(self, extra: Sequence[str]) -> str:
        """Start a server; return its address once it has loaded its models."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        threads = str(self._task.num_threads)
        where = ["--host", "127.0.0.1", "--port", str(port), "--parallel", "1"]
        how = ["-m", str(self._target), "-c", str(_CONTEXT), "-t", threads, "-tb", threads]
        command = [self._binary("llama-server"), *how, *where, *extra]
        server = subprocess.Popen(command, stdout=sys.stderr, stderr=subprocess.STDOUT)
        self._servers.append(server)
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if server.poll() is not None:
                raise NotAvailable(f"llama-server ended with status {server.returncode} on loading")
            try:
                with urllib.request.urlopen(f"{address}/health", timeout=5):
                    return address
            except OSError:
                time.sleep(0.2)
        raise NotAvailable(f"llama-server was not ready after {_START_SECONDS} s")

    def _binary(self, name: str) -> str:
        return str(self._home / "build" / "bin" / name)

    def _gguf(self, checkpoint: Path) -> Path:
        """The checkpoint as a GGUF file: converted in float32, then quantised, head included."""
        precision = self._task.precision
        source = self._home / "llama.cpp"

        def convert(folder: Path) -> None:
            script = [sys.executable, str(source / "convert_hf_to_gguf.py")]
            plain = folder / "float32.gguf"
            what = [str(checkpoint.resolve()), "--outtype", "f32", "--outfile", str(plain)]
            run_quietly([*script, *what])
            if precision == "float32":
                plain.rename(folder / "model.gguf")
                return
            quantize = [self._binary("llama-quantize"), "--pure", str(plain)]
            run_quietly([*quantize, str(folder / "model.gguf"), _TYPES[precision]])
            plain.unlink()

        name = f"llama-cpp-{precision}"
        return converted(Path(self._task.converted), checkpoint, name, convert) / "model.gguf"

    def calls(self, num_tokens: int) -> Iterator[float]:
        """Batches of tokens of as many sequences, after one shared prompt: logits of all of them,
        as verification needs (a batch of `llama-bench` computes those of the last one alone).
        """
        task = self._task
        shape = ["-npp", str(task.valid), "-ntg", str(_STEPS), "-npl", str(num_tokens), "-pps"]
        threads = str(task.num_threads)
        how = ["-c", str(_CONTEXT), "-t", threads, "-tb", threads, "--output-format", "jsonl"]
        command = [self._binary("llama-batched-bench"), "-m", str(self._target), *how, *shape]
        while True:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            if done.returncode != 0 or not lines:
                raise NotAvailable(f"llama-batched-bench failed: {done.stderr.strip()[-200:]}")
            mean = 1000.0 * float(json.loads(lines[-1])["t_tg"]) / _STEPS
            yield from [mean] * _STEPS  # it tells the sum of its steps alone


def _post(address: str, request: Mapping[str, Any]) -> dict[str, Any]:
    body = json.dumps(request).encode()
    headers = {"Content-Type": "application/json"}
    sent = urllib.request.Request(address, data=body, headers=headers)
    with urllib.request.urlopen(sent, timeout=_ANSWER_SECONDS) as answer:
        parsed: dict[str, Any] = json.load(answer)
        return parsed


if __name__ == "__main__":
    serve(LlamaCpp)
