"""The seams of `transformers` that capture uses: its attention interface and its mask interface.

Every attention layer and every mask of a model that is being run comes here, and goes on to the run
that is active: a decoder over its caches, or an encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.cache_utils import Cache
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from spec_compile.errors import CaptureError

IMPLEMENTATION = "spec_compile"
# Arguments of the attention interface that the mask, the cache or inference mode already covers.
_COVERED = frozenset(
    "position_ids cache cache_position use_cache output_attentions output_hidden_states is_causal "
    "sliding_window dropout position_embeddings return_dict logits_to_keep "
    "num_items_in_batch".split()
)


@dataclass(frozen=True)
class Attention:
    """One call of the attention interface.

    Args:
        module: the layer.
        query: [B, H, T, D].
        key: [B, H_kv, T, D].
        value: [B, H_kv, T, D_v].
        mask: what the mask interface gave, or the mask that the model was given.
        scale: factor on query @ key.
        softcap: scores become softcap * tanh(scores / softcap); 0 leaves them.
        bias: added to the scores, [1, H, T, keys], or None.
    """

    module: torch.nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    scale: float
    softcap: float
    bias: Tensor | None

    @property
    def layer(self) -> int:
        """The layer's index.

        Raises:
            CaptureError: it does not know it.
        """
        found = getattr(self.module, "layer_idx", None)
        if not isinstance(found, int):
            raise CaptureError("its attention layers do not know their index (no `layer_idx`)")
        return found


class Run(Protocol):
    """What attention and masks do while a model's forward runs."""

    def attend(self, call: Attention) -> Tensor:
        """The attention output [B, H, T, D_v]."""

    def mask(self, mask_function: Callable[..., Tensor]) -> Tensor:
        """The model's own mask predicate, evaluated."""


_ACTIVE: ContextVar[Run] = ContextVar("spec_compile_run")


@contextmanager
def active(run: Run) -> Iterator[None]:
    """While active, attention and masks go to `run`."""
    token = _ACTIVE.set(run)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


class PassThroughCache(Cache):
    """Hands new keys and values on to attention; tells masks that S slots can be seen."""

    def __init__(self, slots: int) -> None:
        super().__init__(layers=[])
        self.slots = slots

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        """Both, as they are."""
        return key_states, value_states

    def get_mask_sizes(self, *_: Any, **__: Any) -> tuple[int, int]:
        """All slots, from the first."""
        return self.slots, 0

    def get_query_offset(self, *_: Any, **__: Any) -> int:
        """Positions come from the run."""
        return 0

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        """Positions come from the run."""
        return 0


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    **extra: Any,
) -> tuple[Tensor, None]:
    unknown = sorted(k for k, v in extra.items() if k not in _COVERED and v is not None)
    if unknown:
        raise CaptureError(f"its attention uses {', '.join(unknown)}, which is not supported")
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    call = Attention(
        module, query, key, value, attention_mask, scale, softcap or 0.0, position_bias
    )
    return _ACTIVE.get().attend(call).transpose(1, 2), None


def _mask(*, mask_function: Callable[..., Tensor], attention_mask: Any = None, **_: Any) -> Tensor:
    if attention_mask is not None:
        raise CaptureError("its masks depend on padding, which this capture does not use")
    return _ACTIVE.get().mask(mask_function)


ALL_ATTENTION_FUNCTIONS.register(IMPLEMENTATION, _attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(IMPLEMENTATION, _mask)
