"""What this machine's processor can do, for code that was compiled for one (stdlib only)."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

_CPU_INFO = Path("/proc/cpuinfo")
# What compilers make use of; the rest of the list is of interest to operating systems alone.
_PREFIXES = ("amx", "avx", "bmi", "fma", "f16c", "sse", "ssse", "sve", "asimd", "bf16", "i8mm")


def host_features(cpu_info: Path = _CPU_INFO) -> tuple[str, ...]:
    """System, architecture and instruction sets, sorted; the last as far as the system tells."""
    found = {sys.platform, platform.machine().lower()}
    if cpu_info.is_file():
        for line in cpu_info.read_text(encoding="ascii", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip().lower() in ("flags", "features"):
                found |= {word for word in value.split() if word.startswith(_PREFIXES)}
    return tuple(sorted(found))
