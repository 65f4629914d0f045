"""Front end: a decoder-only `transformers` model to a graph with explicit caches.

The model's own modelling code runs under torch.export. Three seams of `transformers` are used, none
of them tied to an architecture: the attention interface (our attention is one node a layer), the
mask interface (the model's own mask predicate at per-row positions), and the cache object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from spec_compile.errors import CaptureError
from spec_compile.export.rope import freeze_rope
from spec_compile.ops import CACHED_ATTENTION
from spec_compile.program import Composite, Graph, TensorSpec, first_line, trace, updated_name

IMPLEMENTATION = "spec_compile"
# Arguments of the attention interface that the mask, the cache or inference mode already covers.
_COVERED = frozenset(
    "position_ids cache cache_position use_cache output_attentions output_hidden_states is_causal "
    "sliding_window dropout position_embeddings return_dict logits_to_keep "
    "num_items_in_batch".split()
)


@dataclass(frozen=True)
class CacheShape:
    """Sizes of one layer's caches: heads of keys and values, width of a key and of a value."""

    num_heads: int
    key_width: int
    value_width: int


@dataclass
class _Run:
    """What attention and mask need while the model's forward runs."""

    lengths: Tensor
    positions: Tensor
    slots: int
    slot_positions: Tensor | None = None
    visible: Tensor | None = None
    key_caches: list[Tensor] = field(default_factory=list)
    value_caches: list[Tensor] = field(default_factory=list)
    shapes: dict[int, CacheShape] = field(default_factory=dict)


_ACTIVE: ContextVar[_Run] = ContextVar("spec_compile_run")


class _active(AbstractContextManager["_active"]):
    def __init__(self, run: _Run) -> None:
        self.run = run

    def __enter__(self) -> Self:
        self.token = _ACTIVE.set(self.run)
        return self

    def __exit__(self, *_: object) -> None:
        _ACTIVE.reset(self.token)


class _PassThroughCache(Cache):
    """Hands new keys and values on to attention; tells masks that S slots can be seen."""

    def __init__(self, slots: int) -> None:
        super().__init__(layers=[])
        self.slots = slots

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        return key_states, value_states

    def get_mask_sizes(self, *_: Any, **__: Any) -> tuple[int, int]:
        return self.slots, 0

    def get_query_offset(self, *_: Any, **__: Any) -> int:
        return 0

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        return 0


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    **extra: Any,
) -> tuple[Tensor, None]:
    unknown = sorted(k for k, v in extra.items() if k not in _COVERED and v is not None)
    if unknown:
        raise CaptureError(f"its attention uses {', '.join(unknown)}, which is not supported")
    if attention_mask is None:
        raise CaptureError("its attention has no mask, so it is not a causal decoder")
    run, layer = _ACTIVE.get(), _layer_index(module)
    if layer in run.shapes:
        raise CaptureError(
            f"layer {layer} attends more than once a token (shared or cross attention)"
        )
    run.shapes[layer] = CacheShape(key.shape[1], key.shape[-1], value.shape[-1])
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    if run.key_caches:
        key_cache, value_cache = run.key_caches[layer], run.value_caches[layer]
    else:
        key_cache, value_cache = (
            new.new_zeros(*new.shape[:2], run.slots, new.shape[-1]) for new in (key, value)
        )
    output, new_keys, new_values = CACHED_ATTENTION(
        query,
        key,
        value,
        key_cache,
        value_cache,
        run.lengths,
        attention_mask,
        scale,
        softcap or 0.0,
    )
    if run.key_caches:
        run.key_caches[layer], run.value_caches[layer] = new_keys, new_values
    return output.transpose(1, 2), None


def _layer_index(module: torch.nn.Module) -> int:
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise CaptureError("its attention layers do not know their index (no `layer_idx`)")
    return layer


def _mask(*, mask_function: Callable[..., Tensor], attention_mask: Any = None, **_: Any) -> Tensor:
    """The model's own mask predicate at (row, head 0, query and slot position): [B, 1, T, S]."""
    if attention_mask is not None:
        raise CaptureError("its masks depend on padding, which this capture does not use")
    run = _ACTIVE.get()
    rows = torch.arange(run.lengths.shape[0])[:, None, None, None]
    head = torch.zeros(1, 1, 1, 1, dtype=torch.int64)
    queries = run.positions[:, None, :, None]
    if run.slot_positions is None or run.visible is None:
        return mask_function(rows, head, queries, torch.arange(run.slots)[None, None, None, :])
    return mask_function(rows, head, queries, run.slot_positions[:, None, None, :]) & run.visible


ALL_ATTENTION_FUNCTIONS.register(IMPLEMENTATION, _attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(IMPLEMENTATION, _mask)


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
            *(_tree_specs(slots) if tree else ()),
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


def _tree_specs(slots: int) -> tuple[TensorSpec, ...]:
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
    with _active(run):
        output = model(
            input_ids=tokens,
            position_ids=run.positions,
            cache=_PassThroughCache(run.slots),
            use_cache=True,
        )
    logits: Tensor = output.logits
    return logits
