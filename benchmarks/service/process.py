"""`spec-compile serve` as a process of its own, on a free port of loopback."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import psutil

MODEL = "served"
_KEPT_LINES = 50  # of what the server complained about


class ServerError(Exception):
    """The server did not start, or ended before its time."""


class ServerProcess:
    """A server; a context manager that ends it in order.

    Args:
        bundle: what it serves.
        arguments: further ones of `spec-compile serve`.

    Attributes:
        url: of the API, without a slash at the end.
        complaints: lines of its log that are no plain information, the first ones.

    Raises:
        ServerError: it ended before it listened; says why.
    """

    def __init__(self, bundle: Path, arguments: Sequence[str] = ()) -> None:
        command = [sys.executable, "-m", "spec_compile.cli", "serve", str(bundle)]
        command += ["--port", "0", "--model-name", MODEL, *arguments]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self._seen = psutil.Process(self._process.pid)
        self.complaints: list[str] = []
        self._listening = threading.Event()
        self._address: dict[str, Any] = {}
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        self._listening.wait()
        if not self._address:
            self._wait()
            raise ServerError("\n".join(self.complaints) or "the server ended without a word")
        self.url = f"http://{self._address['host']}:{self._address['port']}/v1"

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.is_running:
            self.stop()

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process.poll() is None

    @property
    def memory(self) -> int:
        """Bytes of memory that the process holds."""
        return int(self._seen.memory_info().rss)

    def stop(self) -> int:
        """Ask it to end, and return its exit code."""
        self._process.terminate()
        return self._wait()

    def kill(self) -> int:
        """End it without a warning."""
        self._process.kill()
        return self._wait()

    def _wait(self) -> int:
        code = self._process.wait()
        self._reader.join()
        assert self._process.stderr is not None
        self._process.stderr.close()
        return code

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            entry = _entry(line)
            if entry.get("message") == "listening":
                self._address = entry
                self._listening.set()
            if entry.get("level") != "info" and len(self.complaints) < _KEPT_LINES:
                self.complaints.append(line.strip())
        self._listening.set()


class MemoryLog:
    """Samples of a server's memory over time.

    Args:
        server: which one.
        seconds: between two samples.
    """

    def __init__(self, server: ServerProcess, seconds: float) -> None:
        self._server, self._seconds = server, seconds
        self._ended = threading.Event()
        self.samples: list[tuple[float, float]] = []  # seconds, MiB
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> MemoryLog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def slope(self, skipped: float = 0.5) -> float:
        """MiB per minute, by least squares, without the first part, in which pages come in."""
        late = self.samples[int(len(self.samples) * skipped) :]
        if len(late) < 2:
            return 0.0
        seconds, sizes = np.array(late).T
        return 60.0 * float(np.polyfit(seconds, sizes, 1)[0])

    def _sample(self) -> None:
        started = time.monotonic()
        while True:
            try:
                size = self._server.memory / 2**20
            except psutil.NoSuchProcess:
                return
            self.samples.append((time.monotonic() - started, size))
            if self._ended.wait(self._seconds):
                return


def _entry(line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}
