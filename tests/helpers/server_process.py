"""`spec-compile serve` in a process of its own, and what it says on stderr."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx


class ServerProcess:
    """A server that runs until the end of the `with` block, where it is killed.

    Args:
        bundle: folder that it serves.
        options: of the command.
        port: 0 takes a free one.
    """

    def __init__(self, bundle: Path, *options: str, port: int = 0) -> None:
        command = [sys.executable, "-m", "spec_compile.cli", "serve", str(bundle)]
        command += ["--port", str(port), "--num-threads", "1", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self.port = 0
        self._listens = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> ServerProcess:
        assert self._listens.wait(120), self.log
        assert self.port, self.log
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.end()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return "127.0.0.1", self.port

    @property
    def url(self) -> str:
        """Address for clients."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """What has come on stderr so far."""
        return "".join(self.lines)

    def client(self) -> httpx.Client:
        """A client with a timeout."""
        return httpx.Client(base_url=self.url, timeout=60)

    def end(self) -> int:
        """Wait for the end of the process, and return its status."""
        status = self.process.wait(60)
        self._reader.join(60)
        return status

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr:
            for line in self.process.stderr:
                self.lines.append(line)
                if not self._listens.is_set() and '"listening"' in line:
                    said: dict[str, Any] = json.loads(line)
                    self.port = said["port"]
                    self._listens.set()
        self._listens.set()
