"""`spec-compile package`: a bundle as another server wants it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from spec_compile.deploying.triton import TritonSettings, write_repository

FORMATS = ("triton",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `package`."""
    defaults = TritonSettings()
    parser.add_argument("bundle", metavar="BUNDLE", help="folder that export wrote")
    parser.add_argument(
        "--format",
        required=True,
        choices=FORMATS,
        help="triton: a model repository of NVIDIA Triton Inference Server",
    )
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="folder to write")
    parser.add_argument(
        "--model-name", metavar="NAME", help="what clients call it; default: the folder's name"
    )
    parser.add_argument("--slots", type=int, metavar="N", help="requests served at a time")
    parser.add_argument(
        "--max-queue", type=int, default=defaults.max_queue, metavar="N", help="that wait"
    )
    parser.add_argument(
        "--prefill-chunk",
        type=int,
        default=defaults.prefill_chunk,
        metavar="N",
        help="prompt tokens fed per step",
    )
    parser.add_argument(
        "--request-seconds",
        type=float,
        default=defaults.request_seconds,
        metavar="S",
        help="after which a request ends",
    )
    parser.add_argument("--num-threads", type=int, metavar="N", help="threads of the engine")
    parser.add_argument("--no-verify-hash", action="store_true", help="skip the SHA-256 checks")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    """Write the package and say where it is."""
    settings = TritonSettings(
        num_slots=args.slots,
        max_queue=args.max_queue,
        prefill_chunk=args.prefill_chunk,
        num_threads=args.num_threads,
        request_seconds=args.request_seconds,
    )
    started = time.perf_counter()
    folder = write_repository(
        args.bundle,
        args.output,
        model_name=args.model_name,
        settings=settings,
        verify_hash=not args.no_verify_hash,
    )
    seconds = time.perf_counter() - started
    sys.stdout.write(_report(folder, seconds, as_json=args.json) + "\n")
    return 0


def _report(folder: Path, seconds: float, *, as_json: bool) -> str:
    files = {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    size = sum(files.values())
    if as_json:
        report = {"path": str(folder), "seconds": round(seconds, 3), "size": size, "files": files}
        return json.dumps(report, ensure_ascii=False)
    return f"{folder}: {len(files)} files, {size / 2**20:.1f} MiB; README.md says how to run it"
