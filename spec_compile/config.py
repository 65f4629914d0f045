"""What a compile is asked for, validated when it is constructed (standard library only)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from spec_compile.engine_spec import is_compute_capability
from spec_compile.errors import ConfigError

RULES_FOR_SEVERAL_DRAFTS = ("kseq", "recursive", "recursive_wor", "topk_plus_one", "fanout")
ACCEPTANCE_RULES = (
    "greedy",
    "rejection",
    "block",
    "match",
    "typical",
    "lenient",
    "specdec",
    *RULES_FOR_SEVERAL_DRAFTS,
)
FUSIONS = ("verify", "step")
BACKENDS = ("onnxruntime", "tensorrt", "tensorrt-rtx", "torch")
DTYPES = ("float32", "float16", "bfloat16")
DTYPES_OF_BACKEND: Mapping[str, tuple[str, ...]] = {
    "onnxruntime": ("float32",),
    "tensorrt": DTYPES,
    "tensorrt-rtx": DTYPES,
    "torch": ("float32",),
}
QUANTIZATIONS = ("int8", "int4")
NOT_QUANTIZED = "none"
PROMPT_LOOKUP = "prompt-lookup"
DRAFTERS = ("model", PROMPT_LOOKUP)
# Rules that need no law of the draft, and accept no token that is none.
PROMPT_LOOKUP_RULES = ("match", "greedy")
LONGEST_NGRAM = 32
DEFAULT_MAX_LENGTH = 1024
# What the authors of SpecDec release.
SPECDEC_BETA, SPECDEC_TAU = 5, 3.0


def default_acceptance(num_drafts: int, drafter: str = "model") -> str:
    """The rule for those who name none: exact, and what accepts most where one has to be drawn."""
    if drafter == PROMPT_LOOKUP:
        return "match"
    return "block" if num_drafts == 1 else "fanout"


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
        num_drafts: drafts per round (K), each of num_speculative_tokens tokens.
        quantize: `int8` or `int4`, block-wise weights of both models; None leaves them as they are.
        quantize_draft: the same for the draft alone, or `none`; None takes `quantize`.
        draft_vocab: how many tokens the draft may propose, the most frequent of
            `draft_vocab_text`; None leaves them all.
        draft_vocab_text: UTF-8 file in the manner of what will be generated.
        compute_capabilities: devices to build for, as "8.9"; tensorrt-rtx only. None leaves the
            choice to it; tensorrt builds for the device that it finds.
        drafter: `model` (a draft model), or `prompt-lookup` (what followed the last tokens when
            they stood in the text before; fusion `verify`, acceptance `match` or `greedy`).
        prompt_lookup_min: fewest last tokens that prompt lookup looks for, unless a generation
            asks for others.
        prompt_lookup_max: most of them, at most 32.
        specdec_beta: among how many of the target's best tokens a draft token has to be; acceptance
            `specdec` only, for which None takes 5. 1 is greedy decoding of the target.
        specdec_tau: how much less log-probability than the best token it may have; None takes 3.0.

    Raises:
        ConfigError: a value that no compile can use.
    """

    num_speculative_tokens: int = 4
    acceptance: str = "block"
    fusion: str = "verify"
    backend: str = "onnxruntime"
    dtype: str = "float32"
    max_length: int | None = None
    batch_size: int = 8
    num_drafts: int = 1
    quantize: str | None = None
    quantize_draft: str | None = None
    draft_vocab: int | None = None
    draft_vocab_text: str | None = None
    compute_capabilities: tuple[str, ...] = ()
    drafter: str = "model"
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 3
    specdec_beta: int | None = None
    specdec_tau: float | None = None

    def __post_init__(self) -> None:
        _one_of("acceptance", self.acceptance, ACCEPTANCE_RULES)
        _one_of("fusion", self.fusion, FUSIONS)
        _one_of("backend", self.backend, BACKENDS)
        _one_of("dtype", self.dtype, DTYPES)
        if self.dtype not in DTYPES_OF_BACKEND[self.backend]:
            raise ConfigError(
                f"dtype={self.dtype!r} is not supported by backend={self.backend!r}, which runs on "
                "CPUs in float32; for smaller weights take backend='onnxruntime', quantize='int8'"
            )
        _check_capabilities(self.compute_capabilities, self.backend)
        _at_least("num_speculative_tokens", self.num_speculative_tokens, 1)
        _at_least("batch_size", self.batch_size, 1)
        _at_least("num_drafts", self.num_drafts, 1)
        _one_of("quantize", self.quantize, (None, *QUANTIZATIONS))
        _one_of("quantize_draft", self.quantize_draft, (None, NOT_QUANTIZED, *QUANTIZATIONS))
        if self.quantized_models and self.backend != "onnxruntime":
            smaller = "float16" in DTYPES_OF_BACKEND[self.backend]
            advice = "take dtype='float16', or" if smaller else "take"
            raise ConfigError(
                f"quantize is not supported by backend={self.backend!r}: block-wise weights use an "
                f"operator of ONNX Runtime; {advice} backend='onnxruntime'"
            )
        _one_of("drafter", self.drafter, DRAFTERS)
        if self.drafter == PROMPT_LOOKUP:
            self._check_prompt_lookup()
        self._check_specdec()
        if (self.num_drafts > 1) != (self.acceptance in RULES_FOR_SEVERAL_DRAFTS):
            takes_several = self.num_drafts == 1
            takes = "several drafts (num_drafts)" if takes_several else "one draft"
            others = [
                r for r in ACCEPTANCE_RULES if (r in RULES_FOR_SEVERAL_DRAFTS) != takes_several
            ]
            raise ConfigError(
                f"acceptance={self.acceptance!r} takes {takes} a round, not {self.num_drafts}; "
                f"rules that take that many: {', '.join(others)}"
            )
        if self.acceptance == "topk_plus_one" and self.num_speculative_tokens > 1:
            raise ConfigError(
                "acceptance='topk_plus_one' takes drafts of one token: give "
                "num_speculative_tokens=1, or choose fanout"
            )
        if (self.draft_vocab is None) != (self.draft_vocab_text is None):
            raise ConfigError(
                "draft_vocab and draft_vocab_text go together: a number of tokens, and a text "
                "that says which are frequent"
            )
        if self.draft_vocab is not None:
            _at_least("draft_vocab", self.draft_vocab, 1)
        if self.max_length is not None:
            _at_least("max_length", self.max_length, 2)
            if self.num_speculative_tokens >= self.max_length:
                raise ConfigError(
                    f"num_speculative_tokens={self.num_speculative_tokens} must be smaller than "
                    f"max_length={self.max_length}"
                )

    def _check_specdec(self) -> None:
        for name in ("specdec_beta", "specdec_tau"):
            if getattr(self, name) is not None and self.acceptance != "specdec":
                raise ConfigError(
                    f"{name} is a setting of acceptance='specdec' alone, not of "
                    f"{self.acceptance!r}; leave it out"
                )
        beta, tau = self.specdec_settings
        _at_least("specdec_beta", beta, 1)
        sound: object = tau  # whatever a caller without a type checker gave
        if isinstance(sound, bool) or not isinstance(sound, int | float) or not 0 <= tau < math.inf:
            raise ConfigError(f"specdec_tau={tau!r} must be a finite number of at least 0")

    def _check_prompt_lookup(self) -> None:
        if self.acceptance not in PROMPT_LOOKUP_RULES:
            raise ConfigError(
                f"acceptance={self.acceptance!r} needs the law of a draft model; with "
                f"prompt-lookup choose one of {', '.join(PROMPT_LOOKUP_RULES)}"
            )
        if self.fusion != "verify":
            raise ConfigError(
                f"fusion={self.fusion!r} holds a draft model, prompt-lookup has none; choose verify"
            )
        if self.backend != "onnxruntime":
            raise ConfigError(
                f"backend={self.backend!r} verifies the same number of tokens in every round, and "
                "prompt-lookup finds fewer at times; choose onnxruntime"
            )
        for name in ("quantize_draft", "draft_vocab"):
            if getattr(self, name) is not None:
                raise ConfigError(f"{name} is of a draft model; leave it out with prompt-lookup")
        _at_least("prompt_lookup_min", self.prompt_lookup_min, 1)
        _at_least("prompt_lookup_max", self.prompt_lookup_max, self.prompt_lookup_min)
        if self.prompt_lookup_max > LONGEST_NGRAM:
            raise ConfigError(
                f"prompt_lookup_max={self.prompt_lookup_max} must be at most {LONGEST_NGRAM}"
            )

    @property
    def specdec_settings(self) -> tuple[int, float]:
        """Beta and tau of the rule `specdec`."""
        beta = SPECDEC_BETA if self.specdec_beta is None else self.specdec_beta
        return beta, SPECDEC_TAU if self.specdec_tau is None else self.specdec_tau

    @property
    def varies_length(self) -> bool:
        """Whether a round may draft fewer tokens than k; device engines have fixed sizes."""
        return self.fusion == "verify" and self.backend == "onnxruntime"

    @property
    def quantized_models(self) -> dict[str, str]:
        """`int8` or `int4` by model, `target` and `draft`; without those that stay as they are."""
        wanted = {"target": self.quantize}
        if self.drafter == "model":
            wanted["draft"] = self.quantize_draft or self.quantize
        return {name: kind for name, kind in wanted.items() if kind and kind != NOT_QUANTIZED}


def config_for(draft: str, config: SpecConfig | None = None) -> SpecConfig:
    """`config`, or the defaults, for this draft: a model, or `prompt-lookup`.

    Raises:
        ConfigError: the configuration does not fit the draft.
    """
    drafter = PROMPT_LOOKUP if draft == PROMPT_LOOKUP else "model"
    if config is None:
        return SpecConfig(acceptance=default_acceptance(1, drafter), drafter=drafter)
    if config.drafter == PROMPT_LOOKUP and drafter == "model":
        raise ConfigError(
            f"drafter={PROMPT_LOOKUP!r} takes no draft model; give {PROMPT_LOOKUP} as the draft"
        )
    return replace(config, drafter=drafter)


def _one_of(name: str, value: object, allowed: tuple[str | None, ...]) -> None:
    if value not in allowed:
        choices = ", ".join(choice for choice in allowed if choice is not None)
        raise ConfigError(f"{name}={value!r} is not supported; choose one of {choices}")


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
