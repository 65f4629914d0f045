"""`spec-compile serve`: a bundle behind an HTTP server that speaks OpenAI's protocol."""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path

from spec_compile.serving.log import JsonFormatter
from spec_compile.serving.settings import ServerSettings

_KEY_VARIABLE = "SPEC_COMPILE_API_KEY"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `serve`."""
    parser.add_argument("bundle", metavar="BUNDLE", help="folder that export wrote")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="0 takes a free one")
    parser.add_argument(
        "--model-name", metavar="NAME", help="what clients call it; default: the folder's name"
    )
    parser.add_argument(
        "--api-key", metavar="KEY", help=f"ask clients for it; better given as {_KEY_VARIABLE}"
    )
    parser.add_argument(
        "--cors-origin", action="append", default=[], metavar="ORIGIN", help="repeatable"
    )
    parser.add_argument("--slots", type=int, metavar="N", help="requests served at a time")
    parser.add_argument("--max-queue", type=int, default=256, metavar="N", help="that wait")
    parser.add_argument(
        "--prefill-chunk", type=int, default=64, metavar="N", help="prompt tokens fed per step"
    )
    _add_limits(parser)
    parser.add_argument(
        "--no-playground", action="store_true", help="serve no page at /, the API alone"
    )
    parser.add_argument("--no-verify-hash", action="store_true", help="skip the SHA-256 checks")
    parser.add_argument("--num-threads", type=int, metavar="N", help="threads of the engine")


def _add_limits(parser: argparse.ArgumentParser) -> None:
    defaults = ServerSettings("")
    for name, about in (
        ("max_body_bytes", "of a request's body"),
        ("max_prompt_tokens", "of one prompt"),
        ("max_tokens", "that a request may ask for"),
        ("max_choices", "outputs of one request"),
        ("max_concurrency", "requests open at a time"),
        ("max_connections", "open at a time, idle ones included"),
    ):
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(
            option, type=int, default=getattr(defaults, name), metavar="N", help=about
        )
    for name, about in (
        ("request_seconds", "after which a request ends"),
        ("head_seconds", "for a request's line and headers to come in"),
        ("body_seconds", "for a body to come in"),
        ("send_seconds", "after which a client that takes nothing of its answer is left"),
        ("idle_seconds", "that a connection stays open between two requests"),
    ):
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(
            option, type=float, default=getattr(defaults, name), metavar="S", help=about
        )
    parser.add_argument(
        "--drain-seconds",
        type=int,
        default=30,
        metavar="S",
        help="what streams get to finish when the server is told to stop",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM."""
    from spec_compile.runtime.async_decoder import AsyncDecoder
    from spec_compile.serving.server import serve

    settings = settings_of(args)
    _set_up_logging(args.verbose - args.quiet)
    decoder = AsyncDecoder.load(
        args.bundle,
        num_slots=args.slots,
        max_queue=args.max_queue,
        prefill_chunk=args.prefill_chunk,
        num_threads=args.num_threads,
        verify_hash=not args.no_verify_hash,
    )
    serve(decoder, settings, host=args.host, port=args.port, drain_seconds=args.drain_seconds)
    return 0


def settings_of(args: argparse.Namespace) -> ServerSettings:
    """What the arguments allow; the key may come from the environment."""
    return ServerSettings(
        model_name=args.model_name or Path(args.bundle).resolve().name,
        api_key=args.api_key or os.environ.get(_KEY_VARIABLE) or None,
        cors_origins=tuple(args.cors_origin),
        max_body_bytes=args.max_body_bytes,
        max_prompt_tokens=args.max_prompt_tokens,
        max_tokens=args.max_tokens,
        max_choices=args.max_choices,
        max_concurrency=args.max_concurrency,
        max_connections=args.max_connections,
        request_seconds=args.request_seconds,
        head_seconds=args.head_seconds,
        body_seconds=args.body_seconds,
        send_seconds=args.send_seconds,
        idle_seconds=args.idle_seconds,
        playground=not args.no_playground,
    )


def _set_up_logging(verbosity: int) -> None:
    """JSON lines on stderr, a line for each request unless -q is given."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    for name in ("spec_compile", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
        logger.setLevel(logging.INFO if verbosity >= 0 else logging.ERROR)
