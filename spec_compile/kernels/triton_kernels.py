"""The kernels. One program reads one chunk of a row; nothing of size V is ever written.

First pass (`read_rows`, or `read_rows_greedily`): per chunk of every row the largest value, the
sum of exponentials below it, the lowest id of the largest, whether all are numbers, and the sum of
every block. Then `accept_drafts` merges the chunks and finds the accepted prefix of each batch
entry, `sum_residuals` reads the one rejected row again, and `draw_tokens` finds the token by its
block and then inside the block. Which entry needs which is decided on the device.

Names of arguments that hold addresses end in `_at`.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _inverse_temperature(temperature):
    """1 / temperature rounded as the reference rounds it; 1 for a greedy row."""
    divisor = tl.where(temperature > 0, tl.maximum(temperature, 1e-30), 1.0)
    return tl.div_rn(tl.full((), 1.0, tl.float32), divisor)


@triton.jit
def _token_ids(chunk, CHUNK_BLOCKS: tl.constexpr, BLOCK: tl.constexpr):
    """The ids of a chunk: [CHUNK_BLOCKS, BLOCK]."""
    block = chunk * CHUNK_BLOCKS + tl.arange(0, CHUNK_BLOCKS)
    return block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]


@triton.jit
def _read(values_at, row, ids, there, vocab_size, other):
    """Entries `ids` of a row in float32, `other` where they are not `there`."""
    return tl.load(values_at + row.to(tl.int64) * vocab_size + ids, there, other).to(tl.float32)


@triton.jit
def _all_below_infinity(values):
    """1 when no value is NaN (which compares false) or +inf."""
    below = (values < float("inf")).to(tl.int32)
    return tl.min(tl.min(below, axis=1), axis=0)


@triton.jit
def _lowest_id_of(value, values, ids, vocab_size):
    """The lowest of `ids` whose value is `value`; the last token when there is none (NaN)."""
    candidates = tl.where(values == value, ids, vocab_size - 1)
    return tl.min(tl.min(candidates, axis=1), axis=0)


@triton.jit
def _locate(weights, point, SIZE: tl.constexpr):
    """First index whose cumulative weight exceeds `point`, and the point inside it.

    A weight of 0 is never chosen; see `spec_compile.sampling`, whose rounding at the end is kept.
    """
    edges = tl.where(weights > 0, tl.cumsum(weights, axis=0), 0.0)
    reached = (edges > point) | (edges >= tl.max(edges, axis=0))
    index = tl.min(tl.where(reached, tl.arange(0, SIZE), SIZE - 1), axis=0)
    before = tl.max(tl.where(reached, 0.0, edges), axis=0)
    return index, point - before


@triton.jit
def read_rows(
    logits_at,
    temperature_at,
    peaks_at,
    sums_at,
    best_at,
    numbers_at,
    block_sums_at,
    num_positions,
    vocab_size,
    num_chunks,
    CHUNK_BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """First pass over chunk `program_id(1)` of row `program_id(0)`; sums are below the peak."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    ids = _token_ids(chunk, CHUNK_BLOCKS, BLOCK)
    values = _read(logits_at, row, ids, ids < vocab_size, vocab_size, -float("inf"))
    scaled = values * _inverse_temperature(tl.load(temperature_at + row // num_positions))
    peak = tl.max(tl.max(scaled, axis=1), axis=0)
    base = tl.where(peak == -float("inf"), 0.0, peak)
    block_sums = tl.sum(tl.exp(scaled - base), axis=1)
    place = row * num_chunks + chunk
    tl.store(peaks_at + place, peak)
    tl.store(sums_at + place, tl.sum(block_sums, axis=0))
    tl.store(best_at + place, _lowest_id_of(peak, scaled, ids, vocab_size))
    tl.store(numbers_at + place, _all_below_infinity(values))
    tl.store(block_sums_at + place * CHUNK_BLOCKS + tl.arange(0, CHUNK_BLOCKS), block_sums)


@triton.jit
def read_rows_greedily(
    logits_at,
    peaks_at,
    best_at,
    numbers_at,
    vocab_size,
    num_chunks,
    CHUNK_BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """First pass without exponentials: the largest value of a chunk and its lowest id."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    ids = _token_ids(chunk, CHUNK_BLOCKS, BLOCK)
    values = _read(logits_at, row, ids, ids < vocab_size, vocab_size, -float("inf"))
    peak = tl.max(tl.max(values, axis=1), axis=0)
    place = row * num_chunks + chunk
    tl.store(peaks_at + place, peak)
    tl.store(best_at + place, _lowest_id_of(peak, values, ids, vocab_size))
    tl.store(numbers_at + place, _all_below_infinity(values))


@triton.jit
def _best_of_rows(best_at, places, there, peaks, peak, vocab_size):
    """Lowest best id among the chunks that hold the row's peak: [ROWS]."""
    best = tl.load(best_at + places, there, vocab_size - 1)
    holds = there & (peaks == peak[:, None])
    return tl.min(tl.where(holds, best, vocab_size - 1), axis=1)


@triton.jit
def _store_round(
    output_at, emitted_at, entry, position, draft_tokens, accepted, following, is_number, num_drafts
):
    """The accepted draft tokens, the token that follows, -1; and their number."""
    tail = tl.where(position == accepted, following.to(tl.int64), -1)
    tokens = tl.where(position < accepted, draft_tokens, tail)
    tl.store(output_at + entry * (num_drafts + 1) + position, tokens, position <= num_drafts)
    tl.store(emitted_at + entry, tl.where(is_number != 0, accepted + 1, 0).to(tl.int64))


@triton.jit
def accept_drafts(
    logits_at,
    draft_tokens_at,
    draft_probs_at,
    temperature_at,
    uniforms_at,
    peaks_at,
    sums_at,
    best_at,
    numbers_at,
    accepted_at,
    is_number_at,
    row_best_at,
    row_peak_at,
    row_sum_at,
    num_drafts,
    vocab_size,
    num_chunks,
    ROWS: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """Merge the chunks of a batch entry's rows and count the accepted prefix of its draft."""
    entry = tl.program_id(0)
    position, chunk = tl.arange(0, ROWS), tl.arange(0, CHUNKS)
    row = entry * (num_drafts + 1) + position
    places = row[:, None] * num_chunks + chunk[None, :]
    there = (position[:, None] <= num_drafts) & (chunk[None, :] < num_chunks)
    peaks = tl.load(peaks_at + places, there, -float("inf"))
    peak = tl.max(peaks, axis=1)
    base = tl.where(peak == -float("inf"), 0.0, peak)
    sums = tl.sum(tl.load(sums_at + places, there, 0.0) * tl.exp(peaks - base[:, None]), axis=1)
    best = _best_of_rows(best_at, places, there, peaks, peak, vocab_size)
    numbers = tl.min(tl.min(tl.load(numbers_at + places, there, 1), axis=1), axis=0)

    drafted = position < num_drafts
    drafts = entry * num_drafts + position
    token = tl.load(draft_tokens_at + drafts, drafted, 0)
    known = drafted & (token >= 0) & (token < vocab_size)
    temperature = tl.load(temperature_at + entry)
    logit = _read(logits_at, row, token, known, vocab_size, -float("inf"))
    scaled = logit * _inverse_temperature(temperature)
    mass = tl.div_rn(tl.exp(scaled - base), sums)
    target_mass = tl.where(temperature > 0, mass, (known & (token == best)).to(tl.float32))
    draft_mass = _read(draft_probs_at, drafts, token, known, vocab_size, 0.0)
    uniform = tl.load(uniforms_at + row, drafted, 0.0)
    passes = uniform * draft_mass < target_mass
    accepted = tl.min(tl.where(drafted & passes, num_drafts, position), axis=0)

    chosen = position == accepted
    drawn_below = (tl.sum(draft_mass, axis=0) < float("inf")).to(tl.int32)
    tl.store(accepted_at + entry, accepted)
    tl.store(is_number_at + entry, tl.minimum(numbers, drawn_below))
    tl.store(row_best_at + entry, tl.sum(tl.where(chosen, best, 0), axis=0))
    tl.store(row_peak_at + entry, tl.sum(tl.where(chosen, base, 0.0), axis=0))
    tl.store(row_sum_at + entry, tl.sum(tl.where(chosen, sums, 0.0), axis=0))


@triton.jit
def _target_mass(logits_at, row, ids, there, vocab_size, inverse, peak, total):
    """The target's probabilities of `ids`, 0 where they are not `there`."""
    values = _read(logits_at, row, ids, there, vocab_size, -float("inf"))
    return tl.div_rn(tl.exp(values * inverse - peak), total)


@triton.jit
def sum_residuals(
    logits_at,
    draft_probs_at,
    temperature_at,
    accepted_at,
    row_peak_at,
    row_sum_at,
    residual_sums_at,
    num_drafts,
    vocab_size,
    num_blocks,
    CHUNK_BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Block sums of max(0, target - draft) over a chunk of the one row that was rejected."""
    entry, chunk = tl.program_id(0), tl.program_id(1)
    accepted, temperature = tl.load(accepted_at + entry), tl.load(temperature_at + entry)
    if (accepted < num_drafts) & (temperature > 0):
        ids = _token_ids(chunk, CHUNK_BLOCKS, BLOCK)
        there = ids < vocab_size
        row = entry * (num_drafts + 1) + accepted
        inverse = _inverse_temperature(temperature)
        peak, total = tl.load(row_peak_at + entry), tl.load(row_sum_at + entry)
        target = _target_mass(logits_at, row, ids, there, vocab_size, inverse, peak, total)
        draft_row = entry * num_drafts + accepted
        draft = _read(draft_probs_at, draft_row, ids, there, vocab_size, 0.0)
        sums = tl.sum(tl.maximum(target - draft, 0.0), axis=1)
        blocks = chunk * CHUNK_BLOCKS + tl.arange(0, CHUNK_BLOCKS)
        tl.store(residual_sums_at + entry * num_blocks + blocks, sums)


@triton.jit
def _find_block(
    peaks_at,
    block_sums_at,
    residual_sums_at,
    entry,
    row,
    rejected,
    peak,
    total,
    uniform,
    num_chunks,
    NO_MASS: tl.constexpr,
    BLOCKS: tl.constexpr,
    CHUNK_BLOCKS: tl.constexpr,
):
    """The block that holds the token, the point inside it, and whether the law is a residual.

    A block of rounding noise counts as empty: what follows may count on mass that is a normal
    float32 for at least one of its tokens.
    """
    blocks, num_blocks = tl.arange(0, BLOCKS), num_chunks * CHUNK_BLOCKS
    there = blocks < num_blocks
    chunk = row * num_chunks + blocks // CHUNK_BLOCKS
    scale = tl.exp(tl.load(peaks_at + chunk, there, -float("inf")) - peak)
    sums = tl.load(block_sums_at + row * num_blocks + blocks, there, 0.0)
    own = tl.div_rn(sums * scale, total)
    summed = tl.where(rejected, blocks, num_blocks) < num_blocks
    residual = tl.load(residual_sums_at + entry * num_blocks + blocks, summed, 0.0)
    residual = tl.where(residual > NO_MASS, residual, 0.0)
    subtracts = tl.sum(residual, axis=0) > 0
    masses = tl.where(subtracts, residual, tl.where(own > NO_MASS, own, 0.0))
    block, inside = _locate(masses, uniform * tl.sum(masses, axis=0), BLOCKS)
    return block, inside, subtracts


@triton.jit
def draw_tokens(
    logits_at,
    draft_tokens_at,
    draft_probs_at,
    temperature_at,
    uniforms_at,
    peaks_at,
    block_sums_at,
    accepted_at,
    is_number_at,
    row_best_at,
    row_peak_at,
    row_sum_at,
    residual_sums_at,
    output_at,
    emitted_at,
    num_drafts,
    vocab_size,
    num_chunks,
    NO_MASS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
    CHUNK_BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The token that follows the accepted ones, and the round's outputs."""
    entry = tl.program_id(0)
    accepted, temperature = tl.load(accepted_at + entry), tl.load(temperature_at + entry)
    row = entry * (num_drafts + 1) + accepted
    following = tl.load(row_best_at + entry)
    if temperature > 0:
        peak, total = tl.load(row_peak_at + entry), tl.load(row_sum_at + entry)
        uniform = tl.load(uniforms_at + entry * (num_drafts + 1) + num_drafts)
        block, inside, subtracts = _find_block(
            peaks_at, block_sums_at, residual_sums_at, entry, row, accepted < num_drafts,
            peak, total, uniform, num_chunks, NO_MASS, BLOCKS, CHUNK_BLOCKS,
        )  # fmt: skip
        ids = block * BLOCK + tl.arange(0, BLOCK)
        valid = ids < vocab_size
        target = _target_mass(
            logits_at, row, ids, valid, vocab_size, _inverse_temperature(temperature), peak, total
        )
        draft_row = entry * num_drafts + accepted
        subtracted = tl.where(subtracts, ids, vocab_size) < vocab_size
        draft = _read(draft_probs_at, draft_row, ids, subtracted, vocab_size, 0.0)
        index, _ = _locate(tl.maximum(target - draft, 0.0), inside, BLOCK)
        following = tl.minimum(block * BLOCK + index, vocab_size - 1)
    position = tl.arange(0, ROWS)
    drafts = tl.load(draft_tokens_at + entry * num_drafts + position, position < num_drafts, 0)
    is_number = tl.load(is_number_at + entry)
    _store_round(
        output_at, emitted_at, entry, position, drafts, accepted, following, is_number, num_drafts
    )


@triton.jit
def accept_drafts_greedily(
    draft_tokens_at,
    peaks_at,
    best_at,
    numbers_at,
    output_at,
    emitted_at,
    num_drafts,
    vocab_size,
    num_chunks,
    ROWS: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """Merge the chunks, accept while the draft token is the best one, and lay out the round."""
    entry = tl.program_id(0)
    position, chunk = tl.arange(0, ROWS), tl.arange(0, CHUNKS)
    row = entry * (num_drafts + 1) + position
    places = row[:, None] * num_chunks + chunk[None, :]
    there = (position[:, None] <= num_drafts) & (chunk[None, :] < num_chunks)
    peaks = tl.load(peaks_at + places, there, -float("inf"))
    best = _best_of_rows(best_at, places, there, peaks, tl.max(peaks, axis=1), vocab_size)
    numbers = tl.min(tl.min(tl.load(numbers_at + places, there, 1), axis=1), axis=0)
    drafted = position < num_drafts
    token = tl.load(draft_tokens_at + entry * num_drafts + position, drafted, 0)
    accepted = tl.min(tl.where(drafted & (token == best), num_drafts, position), axis=0)
    following = tl.sum(tl.where(position == accepted, best, 0), axis=0)
    _store_round(
        output_at, emitted_at, entry, position, token, accepted, following, numbers, num_drafts
    )
