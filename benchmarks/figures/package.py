"""What the package weighs: seconds of `import spec_compile`, bytes of the wheel."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from pathlib import Path

from benchmarks.figures.fresh_process import run_python
from benchmarks.figures.report import Figure

_ROOT = Path(__file__).resolve().parents[2]
_SKIPPED = (".*", "build", "dist", "*.egg-info", "__pycache__", "node_modules", "venv")


def package(repeat: int) -> Figure:
    """Import in fresh processes, `repeat` times, and build a wheel from a copy of the sources."""
    imports = [import_milliseconds() for _ in range(repeat)]
    size = wheel_bytes()
    rows = [
        [
            "python -X importtime -c 'import spec_compile', total",
            f"{statistics.median(imports):.1f} ms",
        ],
        ["wheel, demonstration pair included", f"{size / 1e6:.2f} MB"],
    ]
    data = {"import_milliseconds": imports, "wheel_bytes": size}
    title = f"The package (medians of {repeat} fresh processes)"
    return Figure(title, ["what", "measured"], rows, data)


def import_milliseconds() -> float:
    """Cumulative time of `import spec_compile`, as `-X importtime` reports it."""
    report = run_python("-X", "importtime", "-c", "import spec_compile").stderr
    for line in report.splitlines():
        parts = line.removeprefix("import time:").split("|")
        if len(parts) == 3 and parts[2].strip() == "spec_compile":
            return int(parts[1]) / 1000
    raise SystemExit("-X importtime did not name spec_compile")


def wheel_bytes() -> int:
    """Size of the wheel; built in a copy, so that the checkout stays as it is."""
    with tempfile.TemporaryDirectory() as scratch:
        tree, output = Path(scratch) / "tree", Path(scratch) / "wheels"
        # The links inside the package have to stay links: setuptools follows them.
        shutil.copytree(_ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(*_SKIPPED))
        run_python(
            "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(output), str(tree)
        )
        (wheel,) = output.glob("*.whl")
        return wheel.stat().st_size
