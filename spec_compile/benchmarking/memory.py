"""Peak memory of a generation, in a process that does nothing else.

python -m spec_compile.benchmarking.memory BUNDLE THREADS      (0: the engine's choice)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from spec_compile.runtime.api import load

_STATUS = Path("/proc/self/status")
_PROMPT, _NEW_TOKENS = (1, 2, 3), 16


def measure_memory(folder: str | os.PathLike[str], num_threads: int | None) -> dict[str, Any]:
    """`peak_memory_bytes` of a short generation of one row, `imports_bytes` of it before loading.

    Values are None where the process cannot be started or the system does not tell.
    """
    arguments = [str(folder), str(num_threads or 0)]
    command = [sys.executable, "-m", "spec_compile.benchmarking.memory", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found = json.loads(done.stdout)
        return {name: found[name] for name in ("peak_memory_bytes", "imports_bytes")}
    except (ValueError, KeyError, TypeError):
        return {"peak_memory_bytes": None, "imports_bytes": None}


def peak_bytes() -> int | None:
    """The most resident memory that this process has had."""
    if _STATUS.is_file():
        for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    return None


def _generate(folder: str, num_threads: int) -> dict[str, int | None]:
    imports = peak_bytes()
    decoder = load(folder, num_threads=num_threads or None, verify_hash=False)
    room = decoder.manifest.config.max_length - 1
    prompt = [token % decoder.manifest.vocab_size for token in _PROMPT[:room]]
    decoder.generate(prompt, max_new_tokens=_NEW_TOKENS, ignore_eos=True)
    return {"peak_memory_bytes": peak_bytes(), "imports_bytes": imports}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_generate(sys.argv[1], int(sys.argv[2]))))
