"""What a compile is asked for, validated when it is constructed (standard library only)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spec_compile.engine_spec import is_compute_capability
from spec_compile.errors import ConfigError

ACCEPTANCE_RULES = ("greedy", "rejection")
FUSIONS = ("verify", "step")
BACKENDS = ("onnxruntime", "tensorrt", "tensorrt-rtx")
DTYPES = ("float32", "float16", "bfloat16")
DTYPES_OF_BACKEND: Mapping[str, tuple[str, ...]] = {
    "onnxruntime": ("float32",),
    "tensorrt": DTYPES,
    "tensorrt-rtx": DTYPES,
}
DEFAULT_MAX_LENGTH = 1024


@dataclass(frozen=True)
class SpecConfig:
    """Options of one compile.

    Args:
        num_speculative_tokens: draft tokens per round (k), without the recovered or bonus token.
        acceptance: name of the acceptance rule.
        fusion: `verify` (a draft and a verify engine) or `step` (one engine, one call a round).
        backend: engine to build for.
        dtype: type of weights, activations and caches.
        max_length: tokens a row may hold, prompt and output together; None takes the smaller of
            1,024 and what both models were built for.
        batch_size: most rows that one call may hold.
        compute_capabilities: devices to build for, as "8.9"; tensorrt-rtx only. None leaves the
            choice to it; tensorrt builds for the device that it finds.

    Raises:
        ConfigError: a value that no compile can use.
    """

    num_speculative_tokens: int = 4
    acceptance: str = "rejection"
    fusion: str = "verify"
    backend: str = "onnxruntime"
    dtype: str = "float32"
    max_length: int | None = None
    batch_size: int = 8
    compute_capabilities: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _one_of("acceptance", self.acceptance, ACCEPTANCE_RULES)
        _one_of("fusion", self.fusion, FUSIONS)
        _one_of("backend", self.backend, BACKENDS)
        _one_of("dtype", self.dtype, DTYPES)
        if self.dtype not in DTYPES_OF_BACKEND[self.backend]:
            raise ConfigError(
                f"dtype={self.dtype!r} is not supported by backend={self.backend!r}; choose one of "
                f"{', '.join(DTYPES_OF_BACKEND[self.backend])}"
            )
        _check_capabilities(self.compute_capabilities, self.backend)
        _at_least("num_speculative_tokens", self.num_speculative_tokens, 1)
        _at_least("batch_size", self.batch_size, 1)
        if self.max_length is not None:
            _at_least("max_length", self.max_length, 2)
            if self.num_speculative_tokens >= self.max_length:
                raise ConfigError(
                    f"num_speculative_tokens={self.num_speculative_tokens} must be smaller than "
                    f"max_length={self.max_length}"
                )


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name}={value!r} is not supported; choose one of {', '.join(allowed)}")


def _check_capabilities(capabilities: tuple[str, ...], backend: str) -> None:
    if capabilities and backend != "tensorrt-rtx":
        raise ConfigError(
            f"compute_capabilities is for backend='tensorrt-rtx' alone, not {backend!r}"
        )
    for text in capabilities:
        if not is_compute_capability(text):
            raise ConfigError(f"compute_capabilities: {text!r} is none; give it as '8.9'")


def _at_least(name: str, value: object, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ConfigError(f"{name}={value!r} must be a whole number of at least {minimum}")
