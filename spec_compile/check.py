"""`check_bundle`: what can be proved of a bundle, on the machine that will run it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from spec_compile.checking.contexts import check_prompts
from spec_compile.checking.edges import check_edges
from spec_compile.checking.greedy import check_greedy
from spec_compile.checking.law import SETTINGS, Setting, check_law
from spec_compile.checking.logits import check_logits
from spec_compile.checking.result import FAILED, PASSED, CheckResult, Progress, no_progress
from spec_compile.errors import ArtifactError, BackendError, ConfigError, GenerationError
from spec_compile.runtime.api import Decoder, load
from spec_compile.runtime.requests import GenerationOptions

_FEWEST_SAMPLES = 100


@dataclass(frozen=True)
class CheckOptions:
    """What to check, validated on construction.

    Args:
        target: the model that the bundle was made from (preset, folder or hub id), to compare
            logits with; None leaves that check out. Needs the extra `compile`.
        greedy: compare greedy tokens.
        law: compare laws.
        prompts: texts; None takes the built-in ones.
        max_new_tokens: greedy tokens for each prompt.
        law_samples: rounds for each sampling setting.
        settings: sampling options whose law is tested.
        seed: of the random numbers; a seed gives the same verdict every time.
        num_threads: threads of one graph call; None leaves the choice to the engine.
        verify_hash: compare every file with its SHA-256.

    Raises:
        ConfigError: a value that no check can use.
    """

    target: str | None = None
    greedy: bool = True
    law: bool = True
    prompts: Sequence[str] | None = None
    max_new_tokens: int = 64
    law_samples: int = 2000
    settings: Sequence[Setting] = SETTINGS
    seed: int = 0
    num_threads: int | None = None
    verify_hash: bool = True

    def __post_init__(self) -> None:
        GenerationOptions(max_new_tokens=self.max_new_tokens, seed=self.seed).row_seeds(1)
        for setting in self.settings:
            GenerationOptions(**setting._asdict())
        if self.law_samples < _FEWEST_SAMPLES:
            raise ConfigError(
                f"law_samples={self.law_samples} says nothing; take {_FEWEST_SAMPLES} or more"
            )


@dataclass(frozen=True)
class CheckReport:
    """The outcome of all checks of one bundle, in the order in which they ran."""

    bundle: str
    results: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return all(result.status != FAILED for result in self.results)

    def as_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON."""
        checks = [result.as_dict() for result in self.results]
        return {"bundle": self.bundle, "passed": self.passed, "checks": checks}


def check_bundle(
    path: str | os.PathLike[str],
    options: CheckOptions | None = None,
    progress: Progress = no_progress,
) -> CheckReport:
    """Check a bundle: its files, its logits, its greedy tokens, the law of its samples.

    Args:
        path: the bundle's folder.
        options: what to check; None takes the defaults.
        progress: told of each stage.

    Returns:
        What each check found. A bundle whose files are damaged has that one result.

    Raises:
        SpecCompileError: a check could not be run: an unknown target, an unusable option.
    """
    options = options or CheckOptions()
    try:
        decoder = load(path, num_threads=options.num_threads, verify_hash=options.verify_hash)
    except ArtifactError as error:
        return CheckReport(str(path), (CheckResult("files", FAILED, str(error)),))
    checks = _planned(decoder, options, progress)
    results = [_describe_files(decoder, options.verify_hash)]
    results += [_guarded(name, check) for name, check in checks.items()]
    return CheckReport(str(path), tuple(results))


def _planned(
    decoder: Decoder, options: CheckOptions, progress: Progress
) -> dict[str, Callable[[], CheckResult]]:
    prompts = check_prompts(decoder, options.prompts, options.seed)
    checks: dict[str, Callable[[], CheckResult]] = {}
    target, seed = options.target, options.seed
    if target is not None:
        checks["logits"] = lambda: check_logits(decoder, target, seed, progress)
    if options.greedy:
        checks["greedy"] = lambda: check_greedy(decoder, prompts, options.max_new_tokens, progress)
    if options.law:
        checks["law"] = lambda: check_law(
            decoder, prompts, options.settings, options.law_samples, seed, progress
        )
        checks["edges"] = lambda: check_edges(decoder, prompts, options.settings, progress)
    return checks


def _guarded(name: str, check: Callable[[], CheckResult]) -> CheckResult:
    """A bundle that cannot be run fails its check; a target that cannot be read is the user's."""
    try:
        return check()
    except (ArtifactError, BackendError, GenerationError) as error:
        return CheckResult(name, FAILED, str(error))


def _describe_files(decoder: Decoder, verified: bool) -> CheckResult:
    files = decoder.manifest.files
    total = sum(file.size for file in files.values())
    what = "sizes and SHA-256" if verified else "sizes (hashes skipped)"
    figures = {"files": len(files), "bytes": total, "verified_hash": verified}
    return CheckResult("files", PASSED, f"{len(files)} files, {total:,} bytes: {what}", figures)
