"""Which instruction sets a machine is said to have."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from spec_compile.host_cpu import host_features


def test_instruction_sets_are_read_and_other_flags_left_out(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(
        "processor\t: 0\nflags\t\t: fpu avx2 fma hypervisor\n\nprocessor\t: 1\nFeatures\t: sve2\n"
    )
    found = host_features(tmp_path / "cpuinfo")
    common = {sys.platform, platform.machine().lower()}
    assert set(found) == {"avx2", "fma", "sve2"} | common
    assert list(found) == sorted(found)


def test_a_system_that_does_not_tell(tmp_path: Path) -> None:
    assert set(host_features(tmp_path / "none")) == {sys.platform, platform.machine().lower()}
