"""`spec-compile export`: two checkpoints to a bundle."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spec_compile.commands.compile_steps import CompileSteps
from spec_compile.commands.sampling_arguments import add_lookup_arguments, given_lookup
from spec_compile.config import (
    ACCEPTANCE_RULES,
    BACKENDS,
    DTYPES,
    FUSIONS,
    NOT_QUANTIZED,
    PROMPT_LOOKUP,
    QUANTIZATIONS,
    SPECDEC_BETA,
    SPECDEC_TAU,
    SpecConfig,
    default_acceptance,
)
from spec_compile.errors import ConfigError

if TYPE_CHECKING:
    from spec_compile.passes.instruments import Timing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `export`."""
    model = "preset (llama, small), local folder or hub id of the model"
    parser.add_argument("--target", required=True, metavar="T", help=f"{model} whose law is kept")
    parser.add_argument(
        "--draft",
        required=True,
        metavar="D",
        help=f"{model} that proposes; or {PROMPT_LOOKUP}: no model, but what followed the last "
        "tokens when they stood in the text before",
    )
    parser.add_argument(
        "-o", "--output", required=True, metavar="DIR", help="folder to make; must not exist"
    )
    _add_draft_arguments(parser)
    _add_config_arguments(parser)
    parser.add_argument("--dump", metavar="DIR", help="write the program after every pass to DIR")
    parser.add_argument(
        "--verify-each", action="store_true", help="check the program after every pass"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def _add_config_arguments(parser: argparse.ArgumentParser) -> None:
    default = SpecConfig()
    parser.add_argument(
        "--fusion",
        default=default.fusion,
        metavar="F",
        help=_choices("verify: two engines a round; step: one", FUSIONS),
    )
    parser.add_argument(
        "--backend", default=default.backend, metavar="B", help=_choices("engine", BACKENDS)
    )
    parser.add_argument(
        "--dtype", default=default.dtype, metavar="TYPE", help=_choices("of weights", DTYPES)
    )
    parser.add_argument(
        "--quantize",
        metavar="TYPE",
        help=f"block-wise weights of both models; one of {', '.join(QUANTIZATIONS)}",
    )
    parser.add_argument(
        "--quantize-draft",
        metavar="TYPE",
        help=f"the same for the draft alone, or {NOT_QUANTIZED} (default: as --quantize)",
    )
    parser.add_argument(
        "--compute-capability",
        action="append",
        default=[],
        metavar="X.Y",
        help="device that tensorrt-rtx builds for, such as 8.9; may be given several times",
    )
    parser.add_argument(
        "--max-length",
        type=int,
        metavar="N",
        help="tokens a row may hold (default 1024, or what the models were built for if less)",
    )
    parser.add_argument(
        "--batch-size",
        type=int,
        default=default.batch_size,
        metavar="N",
        help="most rows in one call (default %(default)s)",
    )


def _add_draft_arguments(parser: argparse.ArgumentParser) -> None:
    default = SpecConfig()
    parser.add_argument(
        "-k",
        "--num-speculative-tokens",
        type=int,
        default=default.num_speculative_tokens,
        metavar="K",
        help="draft tokens a round (default %(default)s)",
    )
    parser.add_argument(
        "--acceptance",
        metavar="RULE",
        help=f"acceptance rule; one of {', '.join(ACCEPTANCE_RULES)} (default "
        f"{default_acceptance(1)}, for several drafts {default_acceptance(2)}, with "
        f"{PROMPT_LOOKUP} {default_acceptance(1, PROMPT_LOOKUP)})",
    )
    parser.add_argument(
        "--beta",
        type=int,
        metavar="N",
        help="for --acceptance specdec: accept among the target's N best tokens; 1 is greedy "
        f"decoding (default {SPECDEC_BETA})",
    )
    parser.add_argument(
        "--tau",
        type=float,
        metavar="F",
        help="for --acceptance specdec: log-probability that a token may have less than the best "
        f"(default {SPECDEC_TAU})",
    )
    parser.add_argument(
        "--num-drafts",
        type=int,
        default=default.num_drafts,
        metavar="K",
        help="drafts a round, for rules that take several (default %(default)s)",
    )
    parser.add_argument(
        "--draft-vocab",
        type=int,
        metavar="N",
        help="let the draft propose only the N most frequent tokens of --draft-vocab-text",
    )
    parser.add_argument(
        "--draft-vocab-text", metavar="FILE", help="UTF-8 text like what will be generated"
    )
    add_lookup_arguments(parser, str(default.prompt_lookup_min), str(default.prompt_lookup_max))


def run(args: argparse.Namespace) -> int:
    """Compile, and say what was written."""
    config = _config(args)
    _check_dump(args.dump, args.output)
    start = time.perf_counter()
    # Imported here: a wrong option is refused at once, without the seconds that torch takes.
    from spec_compile.driver import compile, steps
    from spec_compile.passes.instruments import Timing

    timing = Timing()
    with CompileSteps(steps(config), args) as progress:
        folder = compile(
            args.target,
            args.draft,
            args.output,
            config,
            dump=args.dump,
            verify_each=args.verify_each,
            progress=progress,
            instruments=[timing],
        )
    report = _report(folder, time.perf_counter() - start, progress, timing)
    if args.json:
        sys.stdout.write(json.dumps(report, ensure_ascii=False) + "\n")
    elif not args.quiet:
        sys.stdout.write(summary(report) + "\n")
    return 0


def summary(report: dict[str, Any]) -> str:
    """One line about a bundle that was written."""
    return (
        f"wrote {report['path']}: {len(report['files'])} files, {report['size'] / 1e6:.1f} MB, "
        f"in {report['seconds']:.1f} s"
    )


def _report(folder: Path, seconds: float, progress: CompileSteps, timing: Timing) -> dict[str, Any]:
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    return {
        "path": str(folder),
        "seconds": round(seconds, 3),
        "size": sum(files.values()),
        "files": files,
        "steps": [{"name": name, "seconds": round(taken, 3)} for name, taken in progress.finished],
        "passes": [
            {"name": name, "rewrites": rewrites, "ms": round(taken * 1e3, 1)}
            for name, rewrites, taken in timing.rows
        ],
    }


def _config(args: argparse.Namespace) -> SpecConfig:
    drafter = PROMPT_LOOKUP if args.draft == PROMPT_LOOKUP else "model"
    sizes = given_lookup(args)
    if sizes and drafter == "model":
        option = next(iter(sizes)).replace("_", "-")
        raise ConfigError(f"--{option} belongs to --draft {PROMPT_LOOKUP}; leave it out")
    acceptance = args.acceptance or default_acceptance(args.num_drafts, drafter)
    for option in ("beta", "tau"):
        if getattr(args, option) is not None and acceptance != "specdec":
            raise ConfigError(
                f"--{option} belongs to --acceptance specdec, not {acceptance}; leave it out"
            )
    return SpecConfig(
        drafter=drafter,
        specdec_beta=args.beta,
        specdec_tau=args.tau,
        **sizes,
        num_speculative_tokens=args.num_speculative_tokens,
        acceptance=acceptance,
        fusion=args.fusion,
        backend=args.backend,
        dtype=args.dtype,
        max_length=args.max_length,
        batch_size=args.batch_size,
        num_drafts=args.num_drafts,
        quantize=args.quantize,
        quantize_draft=args.quantize_draft,
        draft_vocab=args.draft_vocab,
        draft_vocab_text=args.draft_vocab_text,
        compute_capabilities=tuple(args.compute_capability),
    )


def _check_dump(dump: str | None, output: str) -> None:
    if dump is None:
        return
    folder = Path(dump).resolve()
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--dump {dump} is a file; give a folder")
    if folder.is_relative_to(Path(output).resolve()):
        raise ConfigError(f"--dump {dump} lies in the output folder; choose another one")


def _choices(what: str, values: tuple[str, ...]) -> str:
    return f"{what}; one of {', '.join(values)} (default %(default)s)"
