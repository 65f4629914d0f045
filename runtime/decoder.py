"""The loop: prefill, then rounds of draft, verify, accept, until every row has ended."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spec_compile.errors import ArtifactError, BackendError, GenerationError
from spec_compile.manifest import Manifest
from spec_compile.runtime.adaptive import Planner
from spec_compile.runtime.batch import Batch
from spec_compile.runtime.engine import Engine
from spec_compile.runtime.requests import GenerationOptions, lookup_sizes
from spec_compile.runtime.rounds import Rounds
from spec_compile.runtime.row import CAPACITY, LENGTH, Row
from spec_compile.runtime.tokenizer import BundleTokenizer


def decode(rounds: Rounds, batch: Batch, rows: Sequence[Row]) -> Iterator[None]:
    """Generate until every row has ended; yields after each round.

    Each round, the drafter proposes up to k tokens, the target model is run once over them, and the
    acceptance rule keeps a prefix of them and adds one token of the target's own. Rejected tokens
    need no undoing: the row's length does not cover them, and the next round overwrites them.

    Raises:
        GenerationError: a model's logits are not numbers.
    """
    running = list(range(len(rows)))
    while running:
        started = time.perf_counter()
        rounds.run()
        blocks, counts = rounds.output_tokens.tolist(), rounds.num_emitted.tolist()
        proposed = rounds.num_proposed
        milliseconds = 1000.0 * (time.perf_counter() - started)
        for row in running:
            check_emitted(row, counts[row], len(blocks[row]))
            block = blocks[row][: counts[row]]
            check_tokens(block, rounds.vocab_size)
            kept = rows[row].accept(block, milliseconds, proposed[row])
            batch.commit(row, kept)
            if rows[row].finished:
                batch.retire(row)
        running = [row for row in running if not rows[row].finished]
        yield


@dataclass(frozen=True)
class Generation:
    """One batch on its way: its rows, and the loop that advances them by a round a step."""

    rows: tuple[Row, ...]
    loop: Iterator[None]


def start(
    engine: Engine,
    manifest: Manifest,
    tokenizer: BundleTokenizer | None,
    prompts: Sequence[Sequence[int]],
    options: GenerationOptions,
    seeds: Sequence[int],
    planner: Planner | None = None,
) -> Generation:
    """Set up one generation of at most `batch_size` checked prompts; nothing is computed yet.

    `planner` chooses how many tokens each round drafts; None drafts as many as there are, up to k.

    Raises:
        ArtifactError: a graph is damaged.
        BackendError: the engine cannot load a graph, or the caches do not fit into memory.
    """
    capacity = manifest.config.max_length
    try:
        batch = Batch(prompts, options, seeds, capacity)
        rounds = Rounds(
            engine,
            manifest,
            batch,
            speculative=options.speculative,
            lookup_sizes=lookup_sizes(options, manifest),
            planner=planner,
        )
    except MemoryError as error:
        raise BackendError(
            f"not enough memory for {len(prompts)} rows of {capacity} tokens; give fewer prompts, "
            "or export with a smaller --max-length"
        ) from error
    rows = []
    for prompt in prompts:
        room = capacity - len(prompt)
        rows.append(
            Row(
                budget=min(options.max_new_tokens, room),
                budget_reason=LENGTH if options.max_new_tokens <= room else CAPACITY,
                eos_token_ids=() if options.ignore_eos else manifest.eos_token_ids,
                stops=options.stops,
                tokenizer=tokenizer,
                num_speculative_tokens=rounds.num_speculative_tokens,
            )
        )
    return Generation(tuple(rows), decode(rounds, batch, rows))


def next_logits(engine: Engine, manifest: Manifest, prompt: Sequence[int]) -> NDArray[np.float32]:
    """The target's logits [V] for the token after `prompt`, by a fresh prefill."""
    batch = Batch([prompt], GenerationOptions(), [0], manifest.config.max_length)
    rounds = Rounds(engine, manifest, batch, speculative=False, with_logits=True)
    rounds.run()
    logits: NDArray[np.float32] = rounds.buffers["logits"][0, 0]
    return logits


def check_emitted(row: int, num_emitted: int, most: int) -> None:
    """Refuse a round that emitted nothing, which says that logits were NaN or infinite.

    Raises:
        GenerationError: naming the row.
    """
    if num_emitted == 0:
        raise GenerationError(
            f"the model's logits for prompt {row} hold NaN or infinity: its weights or its dtype "
            "cannot serve this prompt; check the checkpoint, or export with --dtype float32"
        )
    if not 0 < num_emitted <= most:
        raise GenerationError(
            f"the engine reports {num_emitted} emitted tokens of {most}; export the bundle again"
        )


def check_tokens(block: Sequence[int], vocab_size: int) -> None:
    """Refuse tokens that no model of this vocabulary emits: a graph of other numbers than ours.

    Raises:
        ArtifactError: naming the token.
    """
    for token in block:
        if not 0 <= token < vocab_size:
            raise ArtifactError(
                f"the engine emitted token id {token}, outside the vocabulary 0..{vocab_size - 1}; "
                "export the bundle again"
            )
