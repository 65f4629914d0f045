"""`SharedDecoder`: the blocking interface over one scheduler, for any number of threads."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType

from spec_compile.errors import GenerationError
from spec_compile.runtime import decoder
from spec_compile.runtime.api import Decoder, Prompt
from spec_compile.runtime.engine import Engine, open_engine
from spec_compile.runtime.loader import Bundle, open_bundle
from spec_compile.runtime.requests import (
    GenerationOptions,
    Options,
    check_num_threads,
    check_prompt,
)
from spec_compile.runtime.scheduler import MAX_QUEUE, PREFILL_CHUNK, Scheduler
from spec_compile.runtime.ticket import Listener, Ticket
from spec_compile.runtime.tokenizer import BundleTokenizer, Message, load_tokenizer


@dataclass(frozen=True)
class Prepared:
    """Checked requests that share their options: token ids and a seed each."""

    prompts: Sequence[Sequence[int]]
    options: GenerationOptions
    seeds: Sequence[int]


class SharedDecoder(Decoder):
    """A `Decoder` whose generations share the engine: they join and leave its rows at any time.

    Same methods, options and tokens; one worker thread runs the engine for all threads. A stream
    is computed as fast as the engine goes, whether its pieces are taken or not. Times include
    waiting: the first round's runs from the submission, every other's from the round before.

    Args:
        bundle: an opened bundle.
        engine: runs its graphs.
        tokenizer: None for a bundle that takes and gives token ids only.
        num_slots: see `Scheduler`, as the other two.
        max_queue: requests that may wait.
        prefill_chunk: most tokens of prompts that a step feeds.
    """

    def __init__(
        self,
        bundle: Bundle,
        engine: Engine,
        tokenizer: BundleTokenizer | None,
        *,
        num_slots: int | None = None,
        max_queue: int = MAX_QUEUE,
        prefill_chunk: int = PREFILL_CHUNK,
    ) -> None:
        super().__init__(bundle, engine, tokenizer)
        self.scheduler = Scheduler(
            engine,
            bundle.manifest,
            tokenizer,
            num_slots=num_slots,
            max_queue=max_queue,
            prefill_chunk=prefill_chunk,
        )
        # A decoder that is dropped, or alive at the interpreter's end, takes its worker along.
        weakref.finalize(self, self.scheduler.close)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        num_slots: int | None = None,
        max_queue: int = MAX_QUEUE,
        prefill_chunk: int = PREFILL_CHUNK,
        num_threads: int | None = None,
        verify_hash: bool = True,
        allow_native_code: bool | None = None,
    ) -> SharedDecoder:
        """Open a bundle and start the worker.

        Args:
            path: the bundle's folder.
            num_slots: requests served at a time; None takes the bundle's `batch_size`.
            max_queue: requests that may wait beside them; one more is refused.
            prefill_chunk: most tokens of prompts that a step feeds: a long prompt comes in by
                such parts, between the rounds of others.
            num_threads: threads of one graph call; None leaves the choice to the engine.
            verify_hash: compare every file with its SHA-256.
            allow_native_code: as in `spec_compile.load`.

        Raises:
            ArtifactError: the bundle is missing, damaged, unsafe, or of a newer version.
            BackendError: the engine's package is not installed, or memory does not suffice.
            ConfigError: a number out of its range.
        """
        if num_threads is not None:
            check_num_threads(num_threads)
        bundle = open_bundle(path, verify_hash=verify_hash)
        engine = open_engine(bundle, num_threads=num_threads, allow_native_code=allow_native_code)
        return cls(
            bundle,
            engine,
            load_tokenizer(bundle),
            num_slots=num_slots,
            max_queue=max_queue,
            prefill_chunk=prefill_chunk,
        )

    def __enter__(self) -> SharedDecoder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self, *, drain: bool = False, timeout: float | None = None) -> bool:
        """Take no more requests and end the worker; see `Scheduler.close`."""
        return self.scheduler.close(drain=drain, timeout=timeout)

    def prepare(self, method: str, prompts: Sequence[Prompt], options: Options) -> Prepared:
        """Check and encode requests; nothing is queued yet.

        Args:
            method: of the caller, for messages.
            prompts: texts or token ids.
            options: see `GenerationOptions`.

        Raises:
            GenerationError: a prompt that cannot be served.
            ConfigError: an option's value cannot be used.
            TypeError: an option that does not exist.
        """
        parsed = self._parse(method, options)
        encoded = [self._encode(prompt, parsed) for prompt in prompts]
        return Prepared(encoded, parsed, parsed.row_seeds(len(encoded)))

    def prepare_chat(self, messages: Sequence[Message], options: Options) -> Prepared:
        """`prepare` for one conversation; raises as `chat`."""
        parsed = self._parse("chat", options)
        prompt = check_prompt(self.encode_chat(messages), self.manifest)
        return Prepared([prompt], parsed, parsed.row_seeds(1))

    def submit(
        self,
        prepared: Prepared,
        *,
        timeout: float | None = None,
        listener: Listener | None = None,
    ) -> list[Ticket]:
        """Queue requests, all of them or none; see `Scheduler.submit`."""
        tickets: list[Ticket] = []
        try:
            for prompt, seed in zip(prepared.prompts, prepared.seeds, strict=True):
                tickets.append(
                    self.scheduler.submit(
                        prompt, prepared.options, seed, timeout=timeout, listener=listener
                    )
                )
        except GenerationError:
            for ticket in tickets:
                ticket.row.cancel()
            raise
        return tickets

    def _start(
        self, prompts: list[list[int]], options: GenerationOptions, seeds: Sequence[int]
    ) -> decoder.Generation:
        tickets = self.submit(Prepared(prompts, options, seeds))
        rows = tuple(ticket.row for ticket in tickets)
        return decoder.Generation(rows, self._follow(tickets))

    def _follow(self, tickets: Sequence[Ticket]) -> Iterator[None]:
        """Yield after changes until all are done; holds on to the decoder and so to its worker."""
        try:
            for ticket in tickets:
                yield from ticket.follow()
        finally:
            for ticket in tickets:
                ticket.row.cancel()
