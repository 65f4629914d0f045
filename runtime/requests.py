"""What a user asks for, checked before anything is computed."""

from __future__ import annotations

import math
import operator
import secrets
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, fields
from typing import Any, TypedDict

import numpy as np

from spec_compile.config import LONGEST_NGRAM
from spec_compile.errors import ConfigError, GenerationError, PromptTooLongError
from spec_compile.manifest import Manifest

_SEED_BITS = 48  # below 2**53, so that every JSON reader keeps a reported seed exactly
MAX_TOP_K = 2**62
_MAX_THREADS = 1024
LARGEST_FLOAT = float(np.finfo(np.float32).max)  # what a graph takes
_LOOKUP_OPTIONS = ("prompt_lookup_min", "prompt_lookup_max")
_LONGEST_VALUE = 60  # characters of a refused value that a message shows


class Options(TypedDict, total=False):
    """Keyword arguments of `Decoder.generate` and its kin; see `GenerationOptions`."""

    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int | Sequence[int] | None
    stop: str | Sequence[str]
    ignore_eos: bool
    speculative: bool
    adaptive: bool
    prompt_lookup_min: int | None
    prompt_lookup_max: int | None
    chat: bool


@dataclass(frozen=True)
class GenerationOptions:
    """How to generate, validated on construction.

    Args:
        max_new_tokens: the budget: most tokens to emit, EOS included.
        temperature: 0 is greedy; else logits are divided by it.
        top_k: keep the k most probable tokens; 0 keeps all.
        top_p: keep the most probable tokens up to this mass, in (0, 1].
        min_p: drop tokens less probable than this times the most probable one, in [0, 1).
        seed: row i draws from seed + i; a list gives each row its own; None takes fresh entropy.
        stop: strings that end the output and are not part of its text.
        ignore_eos: let the EOS ids be tokens like any other (for measurements).
        speculative: False decodes with the target alone, one token a call.
        adaptive: choose the number of draft tokens of each round by what rounds take and accept.
        prompt_lookup_min: fewest last tokens that prompt lookup looks for; None takes the bundle's.
        prompt_lookup_max: most of them, at most 32.
        chat: a text prompt is one user message, put through the chat template.

    Raises:
        ConfigError: a value that no generation can use.
    """

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | Sequence[int] | None = None
    stop: str | Sequence[str] = ()
    ignore_eos: bool = False
    speculative: bool = True
    adaptive: bool = False
    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None
    chat: bool = False

    def __post_init__(self) -> None:
        _whole("max_new_tokens", self.max_new_tokens, minimum=1)
        _whole("top_k", self.top_k, minimum=0, maximum=MAX_TOP_K)
        temperature = _real("temperature", self.temperature)
        _require(temperature >= 0, "temperature", self.temperature, "0 (greedy) or more")
        _require(0 < _real("top_p", self.top_p) <= 1, "top_p", self.top_p, "in (0, 1]")
        _require(0 <= _real("min_p", self.min_p) < 1, "min_p", self.min_p, "in [0, 1)")
        wanted = "a non-empty string or a list of them"
        _require(isinstance(self.stop, str | Sequence | Set), "stop", self.stop, wanted)
        for stop in self.stops:
            _require(_is_text(stop), "stop", stop, wanted)
        for name in _LOOKUP_OPTIONS:
            if getattr(self, name) is not None:
                _one_to(LONGEST_NGRAM, name, getattr(self, name))
        for name in ("ignore_eos", "speculative", "adaptive", "chat"):
            value = getattr(self, name)
            _require(isinstance(value, bool | np.bool_), name, value, "True or False")

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings, always a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def row_seeds(self, num_rows: int) -> tuple[int, ...]:
        """The seed of each row.

        Raises:
            ConfigError: a list of another length, or something that is no seed.
        """
        if self.seed is None:
            return tuple(secrets.randbits(_SEED_BITS) for _ in range(num_rows))
        # An array without dimensions is a number.
        if isinstance(self.seed, Sequence | np.ndarray) and getattr(self.seed, "ndim", 1) > 0:
            if len(self.seed) != num_rows:
                raise ConfigError(
                    f"seed has {len(self.seed)} values for {num_rows} prompts; give one a prompt"
                )
            return tuple(_whole("seed", seed, minimum=0) for seed in self.seed)
        first = _whole("seed", self.seed, minimum=0)
        return tuple(first + row for row in range(num_rows))


def parse_options(method: str, options: Options) -> GenerationOptions:
    """`GenerationOptions` of the keyword arguments of `method`.

    Raises:
        TypeError: an option that does not exist, by name.
        ConfigError: a value that no generation can use.
    """
    known = [field.name for field in fields(GenerationOptions)]
    for name in options:
        if name not in known:
            raise TypeError(f"{method}() has no option {name!r}; it takes {', '.join(known)}")
    return GenerationOptions(**options)


def check_options(options: GenerationOptions, manifest: Manifest) -> None:
    """Refuse what this bundle cannot do.

    Raises:
        ConfigError: sampling asked of a bundle that only decodes greedily, adaptive drafting of one
            whose rounds have a fixed length, n-gram sizes of one that does not look them up, or
            sizes out of order.
    """
    if options.adaptive:
        _check_adaptive(options, manifest)
    lookup_sizes(options, manifest)
    if not manifest.config.samples and options.temperature > 0:
        rule = "rejection" if manifest.config.lookup_sizes is None else "match"
        raise ConfigError(
            f"temperature={options.temperature} needs sampling, but the bundle was exported with "
            f"--acceptance {manifest.config.acceptance}; use temperature=0, or export with "
            f"--acceptance {rule}"
        )


def _check_adaptive(options: GenerationOptions, manifest: Manifest) -> None:
    if not options.speculative:
        raise ConfigError("adaptive=True and speculative=False exclude each other")
    config, verify = manifest.config, manifest.graphs.get("verify")
    if verify is None or not verify.takes_any_length:
        raise ConfigError(
            "adaptive drafting needs rounds of any number of draft tokens; this bundle (fusion "
            f"{config.fusion}, acceptance {config.acceptance}, k={config.num_speculative_tokens}) "
            "has one number; export with --fusion verify, k of 2 or more and --acceptance "
            "rejection, lenient, match, greedy or specdec"
        )


def lookup_sizes(options: GenerationOptions, manifest: Manifest) -> tuple[int, int] | None:
    """Shortest and longest n-gram of prompt lookup; None for a bundle with a draft model.

    Raises:
        ConfigError: sizes for a bundle that does not look up, or sizes out of order.
    """
    asked = [name for name in _LOOKUP_OPTIONS if getattr(options, name) is not None]
    if manifest.config.lookup_sizes is None:
        if asked:
            raise ConfigError(
                f"{asked[0]} is an option of prompt lookup, but this bundle has a draft model; "
                "leave it out, or export with --draft prompt-lookup"
            )
        return None
    defaults = manifest.config.lookup_sizes
    shortest, longest = (
        default if getattr(options, name) is None else int(getattr(options, name))
        for name, default in zip(_LOOKUP_OPTIONS, defaults, strict=True)
    )
    if shortest > longest:
        raise ConfigError(
            f"prompt_lookup_min={shortest} must be at most prompt_lookup_max={longest} "
            f"(the bundle's own are {defaults[0]} and {defaults[1]})"
        )
    return shortest, longest


def check_prompt(prompt: Iterable[Any], manifest: Manifest) -> list[int]:
    """Token ids of a prompt as plain ints.

    Raises:
        GenerationError: empty, not ids of this vocabulary, or without room for one new token.
    """
    try:
        if isinstance(prompt, bytes | bytearray | memoryview | Mapping | Set):
            raise TypeError("not a list")
        token_ids = [_index(token) for token in prompt]
    except TypeError as error:
        raise GenerationError("a prompt is a text or a list of whole token ids") from error
    if not token_ids:
        raise GenerationError("the prompt is empty; give at least one token")
    low, high = min(token_ids), max(token_ids)
    if low < 0 or high >= manifest.vocab_size:
        wrong = low if low < 0 else high
        raise GenerationError(
            f"token id {wrong} is outside the vocabulary 0..{manifest.vocab_size - 1}"
        )
    most = manifest.config.max_length - 1
    if manifest.reads_source:
        _check_source(token_ids, manifest.config.max_length)
    elif len(token_ids) > most:
        raise PromptTooLongError(
            f"the prompt has {len(token_ids)} tokens and this bundle holds {most} plus one new "
            "token; shorten it, or export with a larger --max-length"
        )
    return token_ids


def _check_source(token_ids: Sequence[int], most: int) -> None:
    if len(token_ids) > most:
        raise GenerationError(
            f"the source has {len(token_ids)} tokens and this bundle reads {most}; shorten it, or "
            "export with a larger --max-length"
        )


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def check_num_threads(num_threads: Any) -> None:
    """Refuse a number of threads that no engine can start.

    Raises:
        ConfigError: not a whole number of 1 to 1,024.
    """
    _one_to(_MAX_THREADS, "num_threads", num_threads)


def _one_to(most: int, name: str, value: Any) -> None:
    wanted = f"a whole number of 1 to {most}"
    try:
        _require(1 <= _index(value) <= most, name, value, wanted)
    except TypeError:
        _require(False, name, value, wanted)


def check_count(name: str, value: Any) -> None:
    """Refuse what is no number of things.

    Raises:
        ConfigError: not a whole number of at least 1.
    """
    _whole(name, value, minimum=1)


def _index(value: Any) -> int:
    if isinstance(value, bool | str | bytes):
        raise TypeError("not a whole number")
    return operator.index(value)


def _whole(name: str, value: Any, *, minimum: int, maximum: float = math.inf) -> int:
    try:
        number = _index(value)
    except TypeError:
        number = minimum - 1
    _require(minimum <= number <= maximum, name, value, f"a whole number of at least {minimum}")
    return number


def _real(name: str, value: Any) -> float:
    no_number = isinstance(value, bool | np.bool_ | str | bytes | bytearray)
    try:
        number = math.nan if no_number else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    _require(abs(number) <= LARGEST_FLOAT, name, value, "a finite number of float32")
    return number


def _require(condition: bool, name: str, value: object, wanted: str) -> None:
    if not condition:
        raise ConfigError(f"{name}={_shown(value)} must be {wanted}")


def _shown(value: object) -> str:
    """A refused value on one short line."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # a whole number of more digits than Python prints
        text = f"a number of type {type(value).__name__}"
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
