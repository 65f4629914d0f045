"""What an acceptance rule is, and the tensor helpers that rules share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from spec_compile.errors import ConfigError

# Below this a residual is rounding noise of two equal laws, and no law to draw from.
NO_MASS = 1e-30


class Drafting(Enum):
    """How draft tokens have to be drawn for a rule to be right.

    Attributes:
        GREEDY: each the draft's best token.
        SAMPLED: each from the draft's law; several drafts independently of each other.
        WITHOUT_REPLACEMENT: sampled, but the first tokens of several drafts one after the other,
            each from what the ones before it left of the law.
        TOP_AND_ONE: sampled, but the first tokens of several drafts are the K - 1 best, and one
            drawn from what they leave of the law.

    Where nothing of the law is left, the draft takes any token, as long as the target has no say.
    """

    GREEDY = "greedy"
    SAMPLED = "sampled"
    WITHOUT_REPLACEMENT = "without_replacement"
    TOP_AND_ONE = "top_and_one"


class Accepted(NamedTuple):
    """What a rule for several drafts decides.

    Attributes:
        output_tokens: [B, k + 1] int64, -1 in the unused tail.
        num_emitted: [B] int64, 1 to k + 1.
        survivor: [B] int64, a draft that begins with the emitted tokens but the last.
    """

    output_tokens: Tensor
    num_emitted: Tensor
    survivor: Tensor


class Rule(ABC):
    """Decides how many draft tokens of a round stay, and which token follows them.

    A rule is a pure function of tensors with static control flow: no random operator (all
    randomness comes in as `uniforms`), no shape that depends on data, k and V are numbers and B
    may be symbolic.

    Where `symbolic_length` holds, the draft may also be one of J tokens, J symbolic and 0 to k:
    `draft_tokens` [B, J] and `target_probs` [B, J + 1, V], while `draft_probs` and `uniforms` have
    room for k and their first rows and numbers count. One graph then serves rounds of any length.

    Attributes:
        name: the name users give on the command line.
        exact: True when the law of the emitted tokens equals the target's.
        drafting: how the draft tokens have to be drawn.
        samples: False when the rule draws nothing, and raw logits serve as well as laws.
        symbolic_length: whether the number of draft tokens may be symbolic.
    """

    name: ClassVar[str]
    exact: bool
    drafting: ClassVar[Drafting] = Drafting.SAMPLED
    samples: ClassVar[bool] = True
    symbolic_length: ClassVar[bool] = False

    @property
    def uses_draft_probs(self) -> bool:
        """Whether the rule needs the draft's laws; a greedy draft has none."""
        return self.drafting is not Drafting.GREEDY

    def uniforms_shape(self, num_drafts: int, num_speculative_tokens: int) -> tuple[int, ...]:
        """Trailing shape of `uniforms` for this many drafts of this many tokens.

        Most rules take one uniform per position of the target: (k + 1,).

        Raises:
            ConfigError: the rule does not take this many drafts.
        """
        require_single_draft(self.name, num_drafts)
        return (num_speculative_tokens + 1,)

    @abstractmethod
    def __call__(
        self,
        draft_tokens: Tensor,
        draft_probs: Tensor | None,
        target_probs: Tensor,
        uniforms: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Accept or reject, for every row of the batch by itself.

        Args:
            draft_tokens: [B, k] int64; k = 0 draws one token from the target.
            draft_probs: [B, k, V], the very laws that the draft tokens were drawn from.
            target_probs: [B, k + 1, V], the target's law after each prefix of the draft.
            uniforms: [B, *uniforms_shape] in [0, 1), independent of each other.

        Returns:
            output_tokens [B, k + 1] int64 with -1 in the unused tail, and num_emitted [B] int64,
            1 to k + 1.
        """


class SeveralDraftsRule(Rule):
    """A rule for K drafts of a row; all drafts that share a prefix have its laws in common.

    Its tensors have one dimension more: draft_tokens [B, K, k], draft_probs [B, K, k, V] and
    target_probs [B, K, k + 1, V]. Row 0 of draft_probs is the draft's whole law after the prompt,
    whatever `drafting` makes of it.
    """

    def uniforms_shape(self, num_drafts: int, num_speculative_tokens: int) -> tuple[int, ...]:
        """Most take a test per draft token and one draw: (K * k + 1,)."""
        return (num_drafts * num_speculative_tokens + 1,)

    @abstractmethod
    def accept(
        self, draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor, uniforms: Tensor
    ) -> Accepted:
        """Accept or reject, for every row of the batch by itself; see `Rule`."""

    def __call__(
        self,
        draft_tokens: Tensor,
        draft_probs: Tensor | None,
        target_probs: Tensor,
        uniforms: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        draft_probs, uniforms = required(self.name, draft_probs, uniforms)
        accepted = self.accept(draft_tokens, draft_probs, target_probs, uniforms)
        return accepted.output_tokens, accepted.num_emitted


def required(
    name: str, draft_probs: Tensor | None, uniforms: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Both as they are; TypeError when the rule called `name` was not given one of them."""
    if draft_probs is None or uniforms is None:
        raise TypeError(f"the {name} rule needs draft_probs and uniforms")
    return draft_probs, uniforms


def require_single_draft(name: str, num_drafts: int) -> None:
    """Raise ConfigError when a rule for one draft is asked to take several."""
    if num_drafts != 1:
        raise ConfigError(f"acceptance={name!r} takes one draft per round, not {num_drafts}")


def count_accepted(accepted: Tensor) -> Tensor:
    """Length of the accepted prefix: [B, k] bool to [B] int64."""
    rejected = (~accepted).long().cumsum(dim=-1)
    return (rejected == 0).long().sum(dim=-1)


def take_rows(table: Tensor, position: Tensor) -> Tensor:
    """Row position[b] of each table[b]: [B, R, V] and [B] to [B, V]."""
    batch, num_positions, vocab_size = table.shape
    start = torch.arange(batch, device=table.device) * num_positions
    return table.reshape(-1, vocab_size).index_select(0, start + position)


def take_tokens(table: Tensor, tokens: Tensor) -> Tensor:
    """Entry of token i in row i, for the first k of R rows: [B, R, V] and [B, k] to [B, k]."""
    batch, num_positions, vocab_size = table.shape
    row = torch.arange(batch, device=table.device)[:, None] * num_positions
    flat = (row + torch.arange(tokens.shape[-1], device=table.device)) * vocab_size + tokens
    # A lookup keeps the shape of its index; a reshape to no tokens at all is none that ONNX knows.
    return torch.nn.functional.embedding(flat, table.reshape(-1, 1)).squeeze(-1)


def take_draft(table: Tensor, draft: Tensor) -> Tensor:
    """Entry draft[b] of each table[b]: [B, K, ...] and [B] to [B, ...]."""
    start = torch.arange(table.shape[0], device=table.device) * table.shape[1]
    return table.flatten(0, 1).index_select(0, start + draft)


def has_mass(weights: Tensor) -> Tensor:
    """Whether weights [..., V] sum to more than the rounding noise of two equal laws: [..., 1]."""
    return weights.sum(dim=-1, keepdim=True) > NO_MASS


def emit(draft_tokens: Tensor, num_accepted: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
    """Lay out a round: the accepted draft tokens, the token that follows, then -1.

    Args:
        draft_tokens: [B, k] int64.
        num_accepted: [B] int64, 0 to k.
        following: [B] int64, the recovered or bonus token.

    Returns:
        output_tokens [B, k + 1] and num_emitted [B], both int64.
    """
    position = torch.arange(draft_tokens.shape[-1] + 1, device=draft_tokens.device)
    length = num_accepted[:, None]
    padded = torch.nn.functional.pad(draft_tokens, (0, 1), value=-1)
    tail = torch.where(position == length, following[:, None], -1)
    return torch.where(position < length, padded, tail), num_accepted + 1
