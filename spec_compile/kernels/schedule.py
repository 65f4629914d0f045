"""How the kernels share out a row of the vocabulary, and how many bytes that moves.

A row of V logits is cut into blocks of `BLOCK`, the unit in which `spec_compile.sampling.sample`
looks a token up, and into chunks of up to `MAX_CHUNK_BLOCKS` blocks, the part of a row that one
program reads. Everything a chunk leaves behind is a handful of numbers and one sum per block.
"""

from __future__ import annotations

from dataclasses import dataclass

from spec_compile.sampling import BLOCK

MAX_CHUNK_BLOCKS = 16
_FLOAT = 4
# What a program of the first pass writes per chunk: largest value, sum, best id, validity.
_CHUNK_NUMBERS = 4


@dataclass(frozen=True)
class Schedule:
    """The cut of one row.

    Args:
        vocab_size: V.
        chunk_blocks: blocks that one program reads, a power of two.
    """

    vocab_size: int
    chunk_blocks: int

    @classmethod
    def of(cls, vocab_size: int, max_chunk_blocks: int = MAX_CHUNK_BLOCKS) -> Schedule:
        """The cut that the operators use for V tokens."""
        return cls(vocab_size, min(max_chunk_blocks, power_of_two(_ceil(vocab_size, BLOCK))))

    @property
    def num_chunks(self) -> int:
        """Programs per row."""
        return _ceil(self.vocab_size, BLOCK * self.chunk_blocks)

    @property
    def num_blocks(self) -> int:
        """Block sums per row, those of the last chunk's empty blocks included."""
        return self.num_chunks * self.chunk_blocks


@dataclass(frozen=True)
class Outcome:
    """How the entries of one batch ended: which of them need a second pass.

    Args:
        recovered: a draft token was rejected at a temperature above 0.
        bonus: all draft tokens were accepted, at a temperature above 0.
        greedy: temperature 0, whatever was accepted.
    """

    recovered: int = 0
    bonus: int = 0
    greedy: int = 0

    @property
    def batch(self) -> int:
        """B."""
        return self.recovered + self.bonus + self.greedy


@dataclass(frozen=True)
class Traffic:
    """Bytes that one call moves between memory and the kernels.

    Args:
        logits: read of the logits.
        draft_probs: read of the draft's laws.
        scratch: written and read again of what one kernel leaves for the next.
    """

    logits: int
    draft_probs: int
    scratch: int

    @property
    def total(self) -> int:
        """All of them; tokens, uniforms and options are too few to count."""
        return self.logits + self.draft_probs + self.scratch


def kernel_traffic(
    schedule: Schedule, num_drafts: int, outcome: Outcome, logit_bytes: int
) -> Traffic:
    """Bytes that the rejection kernels move.

    Every logit is read once, and the logits of the drafted tokens once more. A recovered entry
    reads its rejected row and the draft's row again for the sums of the residual, then one block
    of both to find the token; a bonus entry reads one block. Blocks count as full: the last of a
    row may be shorter.

    Args:
        schedule: cut of a row.
        num_drafts: k.
        outcome: how the entries ended.
        logit_bytes: 4, or 2 for float16 and bfloat16.
    """
    vocab_size, rows = schedule.vocab_size, outcome.batch * (num_drafts + 1)
    drafted = outcome.batch * num_drafts
    block = min(BLOCK, vocab_size)
    second_pass = outcome.recovered * vocab_size
    looked_up = (outcome.recovered + outcome.bonus) * block
    logits = rows * vocab_size + drafted + second_pass + looked_up
    draft_probs = drafted + second_pass + outcome.recovered * block
    return Traffic(
        logits * logit_bytes, draft_probs * _FLOAT, _scratch(schedule, num_drafts, outcome)
    )


def least_traffic(vocab_size: int, num_drafts: int, outcome: Outcome, logit_bytes: int) -> Traffic:
    """Bytes that no implementation can save: each logit once, the rejected draft rows once."""
    rows, drafted = outcome.batch * (num_drafts + 1), outcome.batch * num_drafts
    return Traffic(
        rows * vocab_size * logit_bytes, (outcome.recovered * vocab_size + drafted) * _FLOAT, 0
    )


def reference_traffic(
    vocab_size: int, num_drafts: int, outcome: Outcome, logit_bytes: int
) -> Traffic:
    """Bytes of the tensor functions as one kernel per operator, the plain path of a batch.

    A product with the inverse temperature (the cast joined to it) and a softmax of three readings
    write two tables of float32; the validity check reads the logits; following law and draw read
    and write about eight rows per entry.
    """
    table = outcome.batch * (num_drafts + 1) * vocab_size
    row = outcome.batch * vocab_size * _FLOAT
    scratch = 6 * table * _FLOAT + 8 * row
    return Traffic(2 * table * logit_bytes, row, scratch)


def power_of_two(number: int) -> int:
    """The smallest power of two that is at least `number`, which is at least 1."""
    return 1 << (number - 1).bit_length()


def _scratch(schedule: Schedule, num_drafts: int, outcome: Outcome) -> int:
    rows = outcome.batch * (num_drafts + 1)
    first_pass = rows * (_CHUNK_NUMBERS * schedule.num_chunks * 2 + schedule.num_blocks)
    own_rows = outcome.batch * (schedule.num_blocks + schedule.num_chunks)
    residuals = outcome.recovered * 2 * schedule.num_blocks
    return (first_pass + own_rows + residuals) * _FLOAT


def _ceil(number: int, unit: int) -> int:
    return -(-number // unit)
