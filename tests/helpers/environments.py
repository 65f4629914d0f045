"""Environments of their own for servers whose requirements exclude those of this one.

Made once per session below a temporary folder, or once and for all below the folder that
SPEC_COMPILE_TEST_ENVIRONMENTS names.
"""

from __future__ import annotations

import os
import subprocess
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_COMPLETE = ".complete"


def environment(name: str, installs: Sequence[Sequence[str]], scratch: Path) -> Path:
    """An environment that imports this checkout's packages, made unless it is there.

    Args:
        name: of its folder.
        installs: arguments of `pip install`, one call after the other.
        scratch: where it goes when no lasting folder is named.
    """
    folder = Path(os.environ.get("SPEC_COMPILE_TEST_ENVIRONMENTS", scratch)).resolve() / name
    if not (folder / _COMPLETE).exists():
        venv.create(folder, with_pip=True, clear=True)
        for arguments in installs:
            pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *arguments]
            subprocess.run(pip, check=True)
        (site_packages(folder) / "spec_compile_checkout.pth").write_text(f"{ROOT}\n")
        (folder / _COMPLETE).touch()
    return folder


def site_packages(folder: Path) -> Path:
    """Where an environment keeps its packages."""
    (found,) = folder.glob("lib/python3*/site-packages")
    return found


def pins(*names: str) -> list[str]:
    """The versions of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = [line for line in lines if line.split("==")[0].lower() in names]
    assert len(found) == len(names), f"constraints.txt lacks one of {names}"
    return found
