"""`spec-compile generate`: text from a bundle, streamed to stdout, statistics on stderr."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from spec_compile.commands.acceptance_colours import coloured, legend
from spec_compile.commands.sampling_arguments import (
    add_adaptive_argument,
    add_lookup_arguments,
    add_sampling_arguments,
    given_lookup,
    given_sampling,
)
from spec_compile.errors import ConfigError, GenerationError
from spec_compile.runtime.api import Decoder, GenerationResult, load
from spec_compile.runtime.engine import DEVICES
from spec_compile.runtime.requests import GenerationOptions, Options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `generate`."""
    parser.add_argument("bundle", metavar="BUNDLE", help="folder that export wrote")
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", metavar="TEXT", help="text to continue")
    prompt.add_argument(
        "--prompt-file",
        metavar="F",
        help="file to continue, less one final newline; - is stdin, the default on a pipe",
    )
    prompt.add_argument("--prompt-ids", metavar="N,N,...", help="token ids to continue")
    parser.add_argument(
        "--max-new-tokens", type=int, default=GenerationOptions.max_new_tokens, metavar="N"
    )
    add_sampling_arguments(parser)
    parser.add_argument("--seed", type=int, metavar="N", help="same seed, same output")
    parser.add_argument(
        "--stop", action="append", default=[], metavar="S", help="end before this text; repeatable"
    )
    parser.add_argument("--ignore-eos", action="store_true", help="do not end at the EOS tokens")
    parser.add_argument("--chat", action="store_true", help="apply the chat template")
    parser.add_argument(
        "--target-only", action="store_true", help="decode with the target model alone"
    )
    parser.add_argument(
        "--show-acceptance",
        action="store_true",
        help="print the text at its end, coloured by how each token came about",
    )
    add_adaptive_argument(parser)
    add_lookup_arguments(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--no-verify-hash", action="store_true", help="skip the SHA-256 checks")
    parser.add_argument("--num-threads", type=int, metavar="N", help="threads of the engine")
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="where the graphs run")


def run(args: argparse.Namespace) -> int:
    """Generate and print."""
    if args.show_acceptance and (args.json or args.target_only):
        other = "--json" if args.json else "--target-only"
        raise ConfigError(f"--show-acceptance and {other} exclude each other")
    prompt = _read_prompt(args)
    options = _options(args)
    decoder = load(
        args.bundle,
        num_threads=args.num_threads,
        verify_hash=not args.no_verify_hash,
        device=args.device,
    )
    if args.json:
        result = decoder.generate(prompt, **options)
        sys.stdout.write(json.dumps(result.as_dict(), ensure_ascii=False) + "\n")
        return 0
    if args.show_acceptance:
        result = _print_coloured(decoder, prompt, options)
    else:
        result = _print_stream(decoder, prompt, options)
    if not args.quiet:
        sys.stderr.write(summary(result) + "\n")
    return 0


def summary(result: GenerationResult) -> str:
    """One line of statistics."""
    stats = result.stats
    return (
        f"{stats.num_emitted_tokens} tokens in {stats.wall_ms / 1000:.2f} s "
        f"({stats.tokens_per_second:.1f} tokens/s), {stats.num_rounds} rounds, "
        f"{stats.block_efficiency:.2f} tokens a round, "
        f"acceptance {stats.acceptance_rate:.2f}, "
        f"ended by {result.finish_reason}, seed {result.seed}"
    )


def _print_coloured(
    decoder: Decoder, prompt: str | list[int], options: Options
) -> GenerationResult:
    result = decoder.generate(prompt, **options)
    decode = decoder.tokenizer.decode if decoder.tokenizer is not None else None
    sys.stdout.write(coloured(result, decode) + "\n")
    sys.stdout.flush()
    sys.stderr.write(legend() + "\n")
    return result


def _print_stream(decoder: Decoder, prompt: str | list[int], options: Options) -> GenerationResult:
    if decoder.tokenizer is None:
        ids = decoder.stream_tokens(prompt, **options)
        for number, token in enumerate(ids):
            sys.stdout.write(f"{' ' if number else ''}{token}")
            sys.stdout.flush()
        sys.stdout.write("\n")
        return ids.result
    stream = decoder.stream(prompt, **options)
    for piece in stream:
        sys.stdout.write(piece)
        sys.stdout.flush()
    if not (stream.result.text or "").endswith("\n"):
        sys.stdout.write("\n")
    sys.stdout.flush()
    return stream.result


def _options(args: argparse.Namespace) -> Options:
    return {
        "max_new_tokens": args.max_new_tokens,
        **given_sampling(args),
        "seed": args.seed,
        "stop": args.stop,
        "ignore_eos": args.ignore_eos,
        "speculative": not args.target_only,
        "adaptive": args.adaptive,
        **given_lookup(args),
        "chat": args.chat,
    }


def _read_prompt(args: argparse.Namespace) -> str | list[int]:
    if args.prompt is not None:
        return str(args.prompt)
    if args.prompt_ids is not None:
        return _parse_ids(args.prompt_ids)
    if args.prompt_file is None and sys.stdin.isatty():
        raise ConfigError("give --prompt, --prompt-file or --prompt-ids, or pipe a prompt in")
    try:
        if args.prompt_file in (None, "-"):
            text = sys.stdin.read()
        else:
            text = Path(args.prompt_file).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise GenerationError(f"the prompt is not UTF-8 text: {error}") from error
    return text.removesuffix("\n")


def _parse_ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError as error:
        raise ConfigError(f"--prompt-ids {text!r} is not a list of whole numbers") from error
