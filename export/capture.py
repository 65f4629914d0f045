"""Front end: a decoder-only `transformers` model to a graph with explicit caches.

The model's own modelling code runs under torch.export. Three seams of `transformers` are used, none
of them tied to an architecture: the attention interface (our attention is one node a layer), the
mask interface (the model's own mask predicate at per-row positions), and the cache object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

from spec_compile.errors import CaptureError
from spec_compile.export.rope import freeze_rope
from spec_compile.export.seams import Attention, PassThroughCache, active
from spec_compile.ops import CACHED_ATTENTION
from spec_compile.program import Composite, Graph, TensorSpec, first_line, trace, updated_name


@dataclass(frozen=True)
class CacheShape:
    """Sizes of one layer's caches: heads of keys and values, width of a key and of a value."""

    num_heads: int
    key_width: int
    value_width: int

    @classmethod
    def of(cls, call: Attention) -> CacheShape:
        """The caches that a call of the attention interface needs."""
        return cls(call.key.shape[1], call.key.shape[-1], call.value.shape[-1])


@dataclass
class _Run:
    """A decoder over its caches; a `Run` of the seams."""

    lengths: Tensor
    positions: Tensor
    slots: int
    slot_positions: Tensor | None = None
    visible: Tensor | None = None
    key_caches: list[Tensor] = field(default_factory=list)
    value_caches: list[Tensor] = field(default_factory=list)
    shapes: dict[int, CacheShape] = field(default_factory=dict)

    def attend(self, call: Attention) -> Tensor:
        """Attention with the cache write of its layer, as one node."""
        if call.bias is not None:
            raise CaptureError("its attention uses position_bias, which is not supported")
        if call.mask is None:
            raise CaptureError("its attention has no mask, so it is not a causal decoder")
        layer = call.layer
        if layer in self.shapes:
            raise CaptureError(
                f"layer {layer} attends more than once a token (shared or cross attention)"
            )
        self.shapes[layer] = CacheShape.of(call)
        if self.key_caches:
            key_cache, value_cache = self.key_caches[layer], self.value_caches[layer]
        else:
            key_cache, value_cache = (
                new.new_zeros(*new.shape[:2], self.slots, new.shape[-1])
                for new in (call.key, call.value)
            )
        output, new_keys, new_values = cached(call, key_cache, value_cache, self.lengths, call.mask)
        if self.key_caches:
            self.key_caches[layer], self.value_caches[layer] = new_keys, new_values
        return output

    def mask(self, mask_function: Callable[..., Tensor]) -> Tensor:
        """The predicate at (row, head 0, query and slot position): [B, 1, T, S]."""
        rows = torch.arange(self.lengths.shape[0])[:, None, None, None]
        head = torch.zeros(1, 1, 1, 1, dtype=torch.int64)
        queries = self.positions[:, None, :, None]
        if self.slot_positions is None or self.visible is None:
            slots = torch.arange(self.slots)[None, None, None, :]
            return mask_function(rows, head, queries, slots)
        slots = self.slot_positions[:, None, None, :]
        return mask_function(rows, head, queries, slots) & self.visible


def cached(
    call: Attention, key_cache: Tensor, value_cache: Tensor, lengths: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """`call` over its caches: the output, and both caches with the new entries."""
    found: tuple[Tensor, Tensor, Tensor] = CACHED_ATTENTION(
        call.query,
        call.key,
        call.value,
        key_cache,
        value_cache,
        lengths,
        mask,
        call.scale,
        call.softcap,
    )
    return found


class _CachedModel(Composite):
    """`model` with caches and per-row lengths as inputs and logits and caches as outputs."""

    def __init__(
        self,
        model: PreTrainedModel,
        shapes: Mapping[int, CacheShape],
        prefix: str,
        max_length: int,
        slots: int,
        tree: bool,
    ) -> None:
        super().__init__()
        self.model = model
        self.num_layers, self.prefix = len(shapes), prefix
        self.max_length, self.slots = max_length, slots
        self.inputs = (
            TensorSpec("tokens", torch.int64, ("B", "T")),
            TensorSpec("lengths", torch.int64, ("B",)),
            *(tree_specs(slots) if tree else ()),
            *cache_specs(shapes, prefix, slots, model.dtype),
        )

    def compute(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        keys = [f"{self.prefix}key_cache.{i}" for i in range(self.num_layers)]
        values = [f"{self.prefix}value_cache.{i}" for i in range(self.num_layers)]
        tokens, lengths = tensors["tokens"], tensors["lengths"]
        chain = lengths[:, None] + torch.arange(tokens.shape[1])
        run = _Run(
            lengths,
            # Slots past max_length hold tokens that are thrown away; position tables end there.
            tensors.get("positions", chain).clamp(max=self.max_length - 1),
            self.slots,
            tensors.get("slot_positions"),
            tensors.get("visible"),
            [tensors[name] for name in keys],
            [tensors[name] for name in values],
        )
        logits = _forward(self.model, tokens, run)
        updated = {updated_name(n): c for n, c in zip(keys, run.key_caches, strict=True)}
        updated |= {updated_name(n): c for n, c in zip(values, run.value_caches, strict=True)}
        return {"logits": logits, **updated}


def capture(
    model: PreTrainedModel,
    *,
    max_length: int,
    slots: int,
    batch_size: int,
    prefix: str = "",
    tree: bool = False,
) -> Graph:
    """Capture a decoder-only model.

    Args:
        model: in evaluation mode, on the CPU, with attention implementation `spec_compile`.
        max_length: tokens a row may hold.
        slots: cache entries a row has room for (S), at least max_length.
        batch_size: most rows of a call.
        prefix: put before the names of the caches.
        tree: tokens of one call may continue different drafts. More inputs then say where each
            token and each slot stands in its text, `positions` [B, T] and `slot_positions` [B, S],
            and which slots a token may see at all, `visible` [B, 1, T, S] bool.

    Returns:
        A graph with inputs `tokens` [B, T], `lengths` [B] and the caches [B, H_kv, S, D]; outputs
        `logits` [B, T, V] and the updated caches `next_*`.

    Raises:
        CaptureError: the model has a feature that cannot be captured; the message names it.
    """
    freeze_rope(model, max_length)
    shapes = _probe(model, slots)
    module = _CachedModel(model, shapes, prefix, max_length, slots, tree)
    return trace(module, batch_size=batch_size, max_length=max_length)


def cache_specs(
    shapes: Mapping[int, CacheShape], prefix: str, slots: int, dtype: torch.dtype
) -> tuple[TensorSpec, ...]:
    """The cache inputs of a model, keys first."""
    keys = [
        TensorSpec(f"{prefix}key_cache.{i}", dtype, ("B", s.num_heads, slots, s.key_width))
        for i, s in sorted(shapes.items())
    ]
    values = [
        TensorSpec(f"{prefix}value_cache.{i}", dtype, ("B", s.num_heads, slots, s.value_width))
        for i, s in sorted(shapes.items())
    ]
    return (*keys, *values)


def tree_specs(slots: int) -> tuple[TensorSpec, ...]:
    """Inputs that say where tokens of several drafts stand; see `capture`."""
    return (
        TensorSpec("positions", torch.int64, ("B", "T")),
        TensorSpec("slot_positions", torch.int64, ("B", slots)),
        TensorSpec("visible", torch.bool, ("B", 1, "T", slots)),
    )


def _probe(model: PreTrainedModel, slots: int) -> dict[int, CacheShape]:
    """Run one token to learn the shapes of every layer's caches, and that each layer attends."""
    zero = torch.zeros(1, dtype=torch.int64)
    run = _Run(zero, zero[:, None], slots)
    try:
        with torch.no_grad():
            _forward(model, zero[:, None], run)
    except CaptureError as error:
        raise CaptureError(f"cannot capture {type(model).__name__}: {error}") from error
    except Exception as error:
        raise CaptureError(
            f"{type(model).__name__} does not run as a causal decoder: {first_line(error)}"
        ) from error
    layers = model.config.get_text_config().num_hidden_layers
    if sorted(run.shapes) != list(range(layers)):
        raise CaptureError(
            f"{type(model).__name__} has {layers} layers but {len(run.shapes)} attend through the "
            "attention interface; recurrent, convolutional and custom attention layers are "
            "not supported"
        )
    return run.shapes


def _forward(model: PreTrainedModel, tokens: Tensor, run: _Run) -> Tensor:
    with active(run):
        output = model(
            input_ids=tokens,
            position_ids=run.positions,
            cache=PassThroughCache(run.slots),
            use_cache=True,
        )
    logits: Tensor = output.logits
    return logits
