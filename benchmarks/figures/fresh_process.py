"""Programs run in a fresh Python process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

_PROBE = Path(__file__).with_name("probe.py")


class Output(NamedTuple):
    """What a process wrote."""

    stdout: str
    stderr: str


def run_python(*arguments: str, cwd: Path | None = None) -> Output:
    """Run Python with `arguments`.

    Raises:
        SystemExit: it failed; the message is the end of its stderr.
    """
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=cwd
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
    return Output(done.stdout, done.stderr)


def run_probe(name: str, folder: Path, num_threads: int) -> tuple[dict[str, Any], str]:
    """The JSON object of a probe of `probe.py`, and its stderr."""
    output = run_python(str(_PROBE), name, str(folder), str(num_threads))
    return json.loads(output.stdout), output.stderr
