"""What the package weighs: import time, the wheel, and an environment of the runtime alone."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import tempfile
import time
import venv
from pathlib import Path
from typing import NamedTuple

from benchmarks.figures.fresh_process import run_python
from benchmarks.figures.report import Figure

_ROOT = Path(__file__).resolve().parents[2]
_IMPORTS = "import onnxruntime, tokenizers, jinja2, spec_compile; spec_compile.load"
_SKIPPED = (".*", "build", "dist", "*.egg-info", "__pycache__", "node_modules", "venv")


def package(repeat: int) -> Figure:
    """Import in fresh processes, `repeat` times; build and install a wheel of the sources."""
    imports = [import_milliseconds() for _ in range(repeat)]
    with tempfile.TemporaryDirectory() as scratch:
        wheel = build_wheel(Path(scratch))
        size = wheel.stat().st_size
        runtime = runtime_environment(wheel, Path(scratch) / "runtime", repeat)
    rows = [
        [
            "python -X importtime -c 'import spec_compile', total",
            f"{statistics.median(imports):.1f} ms",
        ],
        ["wheel, demonstration pair included", f"{size / 1e6:.2f} MB"],
        [
            f"environment of the wheel with the extra cpu, {runtime.num_packages} packages",
            f"{runtime.num_bytes / 1e6:.0f} MB",
        ],
        [
            "in it: start, import of all that a generation needs, and end",
            f"{1000 * statistics.median(runtime.seconds):.0f} ms",
        ],
    ]
    data = {"import_milliseconds": imports, "wheel_bytes": size, "runtime": runtime._asdict()}
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


def build_wheel(scratch: Path) -> Path:
    """The wheel; built in a copy, so that the checkout stays as it is."""
    tree, output = scratch / "tree", scratch / "wheels"
    # The links inside the package have to stay links: setuptools follows them.
    shutil.copytree(_ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(*_SKIPPED))
    run_python("-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(output), str(tree))
    (wheel,) = output.glob("*.whl")
    return wheel


class Environment(NamedTuple):
    """An environment that runs bundles and nothing else."""

    num_packages: int
    num_bytes: int
    seconds: list[float]


def runtime_environment(wheel: Path, folder: Path, repeat: int) -> Environment:
    """Install the wheel with the extra cpu beside no other package, and import it."""
    venv.create(folder, with_pip=False)
    python = str(folder / "bin" / "python")
    pins = str(_ROOT / "constraints.txt")
    install = ("install", "--quiet", "--constraint", pins, f"{wheel}[cpu]")
    run_python("-m", "pip", "--python", python, *install)
    num_bytes = sum(one.lstat().st_size for one in folder.rglob("*") if not one.is_dir())
    num_packages = len(list(folder.glob("lib/python3*/site-packages/*.dist-info")))
    command = [python, "-c", _IMPORTS]
    return Environment(num_packages, num_bytes, [seconds_of(command) for _ in range(repeat)])


def seconds_of(command: list[str]) -> float:
    """Wall time of a process."""
    started = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - started
