"""The command line: parses, calls one sub-command, and turns errors into one line and a code.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 141 the reader of the output left,
143 terminated.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spec_compile import __version__
from spec_compile.errors import ConfigError, SpecCompileError

COMMANDS: Mapping[str, str] = {
    "export": "compile a target and a draft model into a bundle",
    "generate": "generate text from a bundle",
    "serve": "serve a bundle over HTTP, with OpenAI's protocol",
    "package": "write a bundle for another server",
    "inspect": "show what is inside a bundle",
    "check": "prove a bundle against its models and against target-only decoding",
    "bench": "measure bundles against target-only decoding",
    "plan": "measure a pair, and say which k and rule to export",
    "passes": "list the pipeline of graph passes",
}
_FAILED, _USAGE, _INTERRUPTED, _BROKEN_PIPE, _TERMINATED = 1, 2, 130, 141, 143
_EXTRA_OF = {
    "torch": "compile",
    "transformers": "compile",
    "safetensors": "compile",
    "onnx": "compile",
    "onnxscript": "compile",
    "onnx_ir": "compile",
    "onnxruntime": "cpu",
    "starlette": "serve",
    "uvicorn": "serve",
    "tensorrt": "tensorrt",
    "tensorrt_rtx": "tensorrt-rtx",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        argv: arguments without the program's name; None takes the process's own.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()
        return _BROKEN_PIPE
    except KeyboardInterrupt:
        return _complain("interrupted", _INTERRUPTED)
    except ConfigError as error:
        return _complain(f"error: {error}", _USAGE)
    except (SpecCompileError, OSError) as error:
        return _complain(f"error: {error}", _FAILED)
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA_OF:
            raise
        need = f"needs {error.name}; run: pip install 'spec-compile[{_EXTRA_OF[error.name]}]'"
        return _complain(f"error: this command {need}", _FAILED)
    return code


def run() -> int:
    """The installed command: `main` for a whole process."""
    if sys.stdout is None:  # closed by the shell; open until the process ends
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    # An exception, so that a terminated export takes its unfinished bundle away.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    return main()


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """The parser of the whole command line.

    Args:
        command: the sub-command whose own arguments are wanted; only its module is imported.
    """
    common = argparse.ArgumentParser(add_help=False)
    suppress: dict[str, Any] = {"action": "count", "default": argparse.SUPPRESS}
    common.add_argument("-q", "--quiet", help="errors only", **suppress)
    common.add_argument("-v", "--verbose", help="log more; twice for everything", **suppress)
    parser = argparse.ArgumentParser(
        prog="spec-compile",
        description="Compile speculative decoding, and run what was compiled.",
        parents=[common],
    )
    parser.add_argument("--version", action="version", version=f"spec-compile {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        sub = subparsers.add_parser(name, help=summary, description=summary, parents=[common])
        if name == command:
            _module(name).add_arguments(sub)
    return parser


def _run(arguments: list[str]) -> int:
    command = next((argument for argument in arguments if argument in COMMANDS), None)
    defaults = argparse.Namespace(quiet=0, verbose=0)
    args = build_parser(command).parse_args(arguments, defaults)
    _set_up_logging(args.verbose - args.quiet)
    return int(_module(args.command).run(args))


def _module(command: str) -> Any:
    return importlib.import_module(f"spec_compile.commands.{command}")


def _set_up_logging(verbosity: int) -> None:
    levels = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("spec_compile")
    logger.handlers[:] = [handler]
    logger.setLevel(levels[min(max(verbosity + 1, 0), len(levels) - 1)])


def _complain(line: str, code: int) -> int:
    sys.stderr.write(f"spec-compile: {line}\n")
    return code


def _discard_stdout() -> None:
    """Let the interpreter's own last flush of stdout go nowhere instead of failing."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        return


if __name__ == "__main__":
    sys.exit(run())
