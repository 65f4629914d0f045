"""`load` and `Decoder`: what an application calls."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, Unpack, cast, overload

import numpy as np
from numpy.typing import NDArray

from spec_compile.errors import ConfigError, GenerationError
from spec_compile.manifest import Manifest
from spec_compile.runtime import decoder
from spec_compile.runtime.adaptive import Planner
from spec_compile.runtime.engine import Engine, open_engine
from spec_compile.runtime.loader import Bundle, open_bundle
from spec_compile.runtime.requests import (
    GenerationOptions,
    Options,
    check_num_threads,
    check_options,
    check_prompt,
    parse_options,
)
from spec_compile.runtime.row import Row
from spec_compile.runtime.stats import GenerationStats
from spec_compile.runtime.tokenizer import BundleTokenizer, Message, load_tokenizer

Prompt = str | Sequence[int] | NDArray[np.integer[Any]]
Piece = TypeVar("Piece", str, int)


@dataclass(frozen=True)
class GenerationResult:
    """What one prompt gave.

    Args:
        text: the output's text, special tokens and the stop string left out; None when the bundle
            has no tokenizer.
        token_ids: the output's tokens; EOS and the tokens that spelled the stop string included.
        finish_reason: `eos`; `stop` (a stop string); `length` (`max_new_tokens` reached);
            `capacity` (the bundle's `max_length` reached first); `cancelled` (a stream was closed);
            `deadline` (its time was over); `running` (a stream that has not ended).
        seed: what the row drew from; give it as `seed` to get the same tokens again.
        prompt_length: tokens of the prompt.
        stats: counts and times.
    """

    text: str | None
    token_ids: tuple[int, ...]
    finish_reason: str
    seed: int
    prompt_length: int
    stats: GenerationStats

    def as_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON."""
        plain = {"token_ids": list(self.token_ids), "stats": self.stats.as_dict()}
        return {**vars(self), **plain}


class Stream(Generic[Piece]):
    """An output on its way: iterate for its pieces, `close` (or leave a `with`) to cancel.

    A round is computed when the pieces of the last one have been taken, not before. Threads may
    share a stream, each piece goes to one of them; any thread may close it.
    """

    def __init__(self, pieces: Iterator[Piece], row: Row, seed: int, prompt_length: int) -> None:
        self._pieces: Iterator[Piece] = pieces
        self._row = row
        self._lock = threading.RLock()
        self._seed, self._prompt_length = seed, prompt_length

    def __iter__(self) -> Stream[Piece]:
        return self

    def __next__(self) -> Piece:
        try:
            with self._lock:
                return next(self._pieces)
        except StopIteration:
            raise
        except BaseException:  # also an interrupt: the generation cannot go on after it
            self._row.cancel()
            raise

    def __enter__(self) -> Stream[Piece]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Compute nothing more; `result` keeps what there is."""
        self._pieces = iter(())
        self._row.cancel()

    @property
    def result(self) -> GenerationResult:
        """What has been generated so far."""
        return result_of(self._row, self._seed, self._prompt_length)


class Decoder:
    """Generates from a bundle. Several generations, also from several threads, may run at a time.

    Every method that generates takes the keyword options of `GenerationOptions`: `max_new_tokens`,
    `temperature`, `top_k`, `top_p`, `min_p`, `seed`, `stop`, `ignore_eos`, `speculative`,
    `adaptive`, `prompt_lookup_min`, `prompt_lookup_max`, `chat`.

    Args:
        bundle: an opened bundle.
        engine: runs its graphs.
        tokenizer: None for a bundle that takes and gives token ids only.
    """

    def __init__(self, bundle: Bundle, engine: Engine, tokenizer: BundleTokenizer | None) -> None:
        self.bundle = bundle
        self.engine = engine
        self.tokenizer = tokenizer
        self._planners: dict[tuple[int, bool], Planner] = {}

    @property
    def manifest(self) -> Manifest:
        """The bundle's contract."""
        return self.bundle.manifest

    @overload
    def generate(
        self,
        prompt: list[str] | list[list[int]] | list[NDArray[Any]],
        **options: Unpack[Options],
    ) -> list[GenerationResult]: ...
    @overload
    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> GenerationResult: ...
    def generate(
        self, prompt: Prompt | Sequence[Prompt], **options: Unpack[Options]
    ) -> GenerationResult | list[GenerationResult]:
        """Generate to the end.

        Args:
            prompt: a text or its token ids, or a list of either. More prompts than the bundle's
                `batch_size` run in groups, one after the other.
            options: see `GenerationOptions`.

        Returns:
            One result, or a list of them for a list of prompts, in order.

        Raises:
            GenerationError: a prompt that cannot be served, or logits that are not numbers.
            ConfigError: an option's value cannot be used.
            TypeError: an option that does not exist.
        """
        parsed = self._parse("generate", options)
        if not is_batch(prompt):
            return self._generate([self._encode(cast(Prompt, prompt), parsed)], parsed)[0]
        prompts = [self._encode(one, parsed) for one in cast(Sequence[Prompt], prompt)]
        return self._generate(prompts, parsed)

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Stream[str]:
        """Generate piece by piece; the pieces together are `result.text`.

        Args:
            prompt: a text or its token ids.
            options: see `GenerationOptions`.

        Raises:
            GenerationError: as `generate`; also when the bundle has no tokenizer.
            ConfigError: as `generate`.
            TypeError: as `generate`.
        """
        if self.tokenizer is None:
            raise GenerationError("this bundle has no tokenizer; use stream_tokens for token ids")
        generation, seed, length = self._start_one("stream", prompt, options)
        return Stream(_text_pieces(generation), generation.rows[0], seed, length)

    def stream_tokens(self, prompt: Prompt, **options: Unpack[Options]) -> Stream[int]:
        """Generate token id by token id, as they are kept; otherwise like `stream`."""
        generation, seed, length = self._start_one("stream_tokens", prompt, options)
        return Stream(_token_pieces(generation), generation.rows[0], seed, length)

    def chat(self, messages: Sequence[Message], **options: Unpack[Options]) -> GenerationResult:
        """Answer a conversation through the bundle's chat template.

        Args:
            messages: `{"role": ..., "content": ...}`, oldest first.
            options: see `GenerationOptions`.

        Raises:
            GenerationError: as `generate`; also when there is no chat template.
            ConfigError: as `generate`.
            TypeError: as `generate`.
        """
        parsed = self._parse("chat", options)
        prompt = check_prompt(self.encode_chat(messages), self.manifest)
        return self._generate([prompt], parsed)[0]

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation, as `chat` feeds them.

        Raises:
            GenerationError: no tokenizer, no template, or one that refuses the messages.
        """
        tokenizer = self._need_tokenizer()
        # The template writes the special tokens itself.
        return tokenizer.encode(tokenizer.render_chat(messages), add_special_tokens=False)

    def next_logits(self, prompt: Prompt, after: Sequence[int] = ()) -> NDArray[np.float32]:
        """The target's logits [V] for the next token, by the `target` graph.

        Args:
            prompt: a text or its token ids.
            after: token ids of an output so far.

        Raises:
            GenerationError: a prompt that cannot be served.
        """
        token_ids = self._encode(prompt, GenerationOptions())
        return decoder.next_logits(self.engine, self.manifest, token_ids, after)

    def _parse(self, method: str, options: Options) -> GenerationOptions:
        parsed = parse_options(method, options)
        check_options(parsed, self.manifest)
        if parsed.stops and self.tokenizer is None:
            raise ConfigError("stop needs text, but this bundle has no tokenizer")
        return parsed

    def _encode(self, prompt: Prompt, options: GenerationOptions) -> list[int]:
        if not isinstance(prompt, str):
            if options.chat:
                raise GenerationError("chat=True takes a text, not token ids")
            return check_prompt(prompt, self.manifest)
        if not prompt:
            raise GenerationError("the prompt is empty; give at least one token")
        if options.chat:
            token_ids = self.encode_chat([{"role": "user", "content": prompt}])
        else:
            token_ids = self._need_tokenizer().encode(prompt)
        return check_prompt(token_ids, self.manifest)

    def _need_tokenizer(self) -> BundleTokenizer:
        if self.tokenizer is None:
            raise GenerationError("this bundle has no tokenizer; give the prompt as token ids")
        return self.tokenizer

    def _generate(
        self, prompts: list[list[int]], options: GenerationOptions
    ) -> list[GenerationResult]:
        seeds = options.row_seeds(len(prompts))
        size = self.manifest.config.batch_size
        results = []
        for first in range(0, len(prompts), size):
            group = slice(first, first + size)
            generation = self._start(prompts[group], options, seeds[group])
            for _ in generation.loop:
                pass
            for row, seed, prompt in zip(
                generation.rows, seeds[group], prompts[group], strict=True
            ):
                results.append(result_of(row, seed, len(prompt)))
        return results

    def _start_one(
        self, method: str, prompt: Prompt, options: Options
    ) -> tuple[decoder.Generation, int, int]:
        parsed = self._parse(method, options)
        if is_batch(prompt):
            raise GenerationError(f"{method} takes one prompt; use generate for a list")
        token_ids = self._encode(prompt, parsed)
        (seed,) = parsed.row_seeds(1)
        return self._start([token_ids], parsed, [seed]), seed, len(token_ids)

    def _start(
        self, prompts: list[list[int]], options: GenerationOptions, seeds: Sequence[int]
    ) -> decoder.Generation:
        planner = self._planner(len(prompts), options.temperature > 0) if options.adaptive else None
        return decoder.start(
            self.engine, self.manifest, self.tokenizer, prompts, options, seeds, planner
        )

    def _planner(self, rows: int, samples: bool) -> Planner:
        """What earlier generations of as many rows have learnt; at temperature 0 apart."""
        fresh = Planner(self.manifest.config.num_speculative_tokens)
        return self._planners.setdefault((rows, samples), fresh)


def load(
    path: str | os.PathLike[str],
    *,
    num_threads: int | None = None,
    verify_hash: bool = True,
    allow_native_code: bool | None = None,
    device: str = "cpu",
    cuda_graph: bool = False,
) -> Decoder:
    """Open a bundle for generation.

    Args:
        path: the bundle's folder.
        num_threads: threads of one graph call; None leaves the choice to the engine.
        verify_hash: compare every file with its SHA-256; sizes and paths are always checked.
        allow_native_code: run a bundle that holds machine code (backend `torch`), which may do
            whatever this process may; None asks SPEC_COMPILE_ALLOW_NATIVE_CODE (1 allows).
        device: where ONNX Runtime runs the graphs: `cpu`, or by its CUDA (`cuda`), TensorRT
            (`tensorrt`) or TensorRT for RTX (`tensorrt-rtx`) provider.
        cuda_graph: on a device, record rounds once and replay them.

    Raises:
        ArtifactError: the bundle is missing, damaged, unsafe, or of a newer version.
        BackendError: the engine's package is not installed, or lacks the device.
        NativeCodeError: the bundle holds machine code, and it is not allowed.
        ConfigError: `num_threads` is no whole number of 1 to 1,024, or `device` is not for this
            bundle.
    """
    if num_threads is not None:
        check_num_threads(num_threads)
    bundle = open_bundle(path, verify_hash=verify_hash)
    engine = open_engine(
        bundle,
        num_threads=num_threads,
        allow_native_code=allow_native_code,
        device=device,
        cuda_graph=cuda_graph,
    )
    return Decoder(bundle, engine, load_tokenizer(bundle))


def is_batch(prompt: object) -> bool:
    """Whether `prompt` is a list of prompts."""
    if isinstance(prompt, np.ndarray):
        return prompt.ndim > 1
    first = prompt[0] if isinstance(prompt, Sequence) and len(prompt) > 0 else None
    return not isinstance(prompt, str) and isinstance(first, str | Sequence | np.ndarray)


def result_of(row: Row, seed: int, prompt_length: int) -> GenerationResult:
    """What a row has generated so far."""
    return GenerationResult(
        text=row.text,
        token_ids=tuple(row.token_ids),
        finish_reason=row.finish_reason,
        seed=seed,
        prompt_length=prompt_length,
        stats=row.stats(),
    )


def _text_pieces(generation: decoder.Generation) -> Iterator[str]:
    for _ in generation.loop:
        if piece := generation.rows[0].read_text():
            yield piece


def _token_pieces(generation: decoder.Generation) -> Iterator[int]:
    num_read = 0
    for _ in generation.loop:
        fresh = generation.rows[0].token_ids[num_read:]
        num_read += len(fresh)
        yield from fresh
