"""Front end: an encoder-decoder `transformers` model to two graphs, its encoder and its decoder.

The encoder graph ends in what each decoder layer's cross-attention reads, so that it is computed
once a text; the decoder graph is a cached model as any other, which reads that too. The seams are
those of capture.py. Where a token stands is said for each row: by masks, and by the tables and
biases that seq2seq_probe.py finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, EncoderDecoderCache

from spec_compile.export.capture import CacheShape, cache_specs, cached, tree_specs
from spec_compile.export.seams import Attention, PassThroughCache, active
from spec_compile.export.seq2seq_probe import (
    CollectingCache,
    Decoder,
    NoAttention,
    decode,
    encoder_states,
    probe_decoder,
)
from spec_compile.graph_contract import SOURCE_LENGTHS, SOURCE_TOKENS
from spec_compile.graph_weights import without_unused_weights
from spec_compile.ops import masked_attention
from spec_compile.program import Composite, Graph, TensorSpec, trace, updated_name

aten = torch.ops.aten


class Seq2SeqGraphs(NamedTuple):
    """The graphs of an encoder-decoder model."""

    encoder: Graph
    decoder: Graph


def capture_seq2seq(
    model: PreTrainedModel,
    *,
    max_length: int,
    slots: int,
    batch_size: int,
    prefix: str = "",
    tree: bool = False,
) -> Seq2SeqGraphs:
    """Capture an encoder-decoder model.

    Args:
        model: in evaluation mode, on the CPU, with attention implementation `spec_compile`.
        max_length: tokens that a source may have, and a row may hold.
        slots: cache entries a row has room for (S), at least max_length.
        batch_size: most rows of a call.
        prefix: put before the names of caches and of what cross-attention reads.
        tree: as in `capture`.

    Returns:
        The encoder, from `source_tokens` [B, N] and `source_lengths` [B] to `cross_key.*` and
        `cross_value.*` [B, H, N, D]; and the decoder, which has these and `source_lengths` besides
        the inputs of `capture`, and the same outputs.

    Raises:
        CaptureError: the model has a feature that cannot be captured; the message names it.
    """
    found = probe_decoder(model, max_length)
    encoder = trace(
        _Encoder(model, found.num_layers, prefix), batch_size=batch_size, max_length=max_length
    )
    module = _Decoder(model, found, prefix, max_length, slots, tree)
    decoder = trace(module, batch_size=batch_size, max_length=max_length)
    return Seq2SeqGraphs(_used(encoder), _used(decoder))


def _used(graph: Graph) -> Graph:
    """Either graph ran parts of the other model: drop what does not lead to an output."""

    def drop(copied: fx.Graph) -> int:
        for node in list(copied.nodes):
            # Either would keep what it reads: one checks types, the other could draw numbers.
            if node.target is aten._assert_tensor_metadata.default:
                copied.erase_node(node)
            elif node.target is aten.dropout.default and node.args[-1] is False:
                node.replace_all_uses_with(node.args[0])
                copied.erase_node(node)
            elif node.target is aten.add_.Tensor and _is_last_use(node):
                node.target = aten.add.Tensor  # passes leave graphs alone that write in place
        copied.eliminate_dead_code()
        return 1

    return without_unused_weights(graph.edited(drop)[0])


def _is_last_use(node: fx.Node) -> bool:
    """Whether what `node` writes to is a value of its own that nobody reads afterwards."""
    written = node.args[0]
    if not isinstance(written, fx.Node) or len(written.users) > 1:
        return False
    returns: Any = getattr(getattr(written.target, "_schema", None), "returns", [])
    return len(returns) == 1 and returns[0].alias_info is None


def cross_specs(
    shapes: Mapping[int, CacheShape], prefix: str, dtype: torch.dtype
) -> tuple[TensorSpec, ...]:
    """What cross-attention reads, keys first."""
    ordered = sorted(shapes.items())
    return (
        *(
            TensorSpec(f"{prefix}cross_key.{i}", dtype, ("B", s.num_heads, "N", s.key_width))
            for i, s in ordered
        ),
        *(
            TensorSpec(f"{prefix}cross_value.{i}", dtype, ("B", s.num_heads, "N", s.value_width))
            for i, s in ordered
        ),
    )


class _Encoder(Composite):
    """The encoder, and the projections of its states that belong to the decoder's layers."""

    inputs = (
        TensorSpec(SOURCE_TOKENS, torch.int64, ("B", "N")),
        TensorSpec(SOURCE_LENGTHS, torch.int64, ("B",)),
    )

    def __init__(self, model: PreTrainedModel, num_layers: int, prefix: str) -> None:
        super().__init__()
        self.model, self.num_layers, self.prefix = model, num_layers, prefix

    def compute(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Keys and values by name, keys first."""
        tokens = tensors[SOURCE_TOKENS]
        visible = _source_visible(tensors[SOURCE_LENGTHS], tokens.shape[1])
        cross = CollectingCache()
        with active(_EncoderRun()):
            states = encoder_states(self.model, tokens, visible)
        with active(NoAttention()):
            # One token is decoded, in vain, to have each layer project the states.
            decode(
                self.model, tokens[:, :1], states, EncoderDecoderCache(PassThroughCache(1), cross)
            )
        layers = range(self.num_layers)
        keys = {f"{self.prefix}cross_key.{i}": cross.keys[i].contiguous() for i in layers}
        return keys | {
            f"{self.prefix}cross_value.{i}": cross.values[i].contiguous() for i in layers
        }


class _EncoderRun(NoAttention):
    """Attention over the whole source."""

    def attend(self, call: Attention) -> Tensor:
        """Every token sees every token of its row's source."""
        assert call.mask is not None
        mask = call.mask
        if call.bias is not None:
            mask = call.bias.masked_fill(~mask, float("-inf"))
        return masked_attention(call.query, call.key, call.value, mask, call.scale, call.softcap)


class _Decoder(Composite):
    """The decoder with caches, per-row lengths and what it reads of the source as inputs."""

    def __init__(
        self,
        model: PreTrainedModel,
        found: Decoder,
        prefix: str,
        max_length: int,
        slots: int,
        tree: bool,
    ) -> None:
        super().__init__()
        self.model, self.found, self.prefix = model, found, prefix
        self.max_length, self.slots = max_length, slots
        self.biases = _Biases(found.biases)
        cross = cross_specs(found.cross, prefix, model.dtype)
        self.cross_names = [spec.name for spec in cross]
        self.inputs = (
            TensorSpec("tokens", torch.int64, ("B", "T")),
            TensorSpec("lengths", torch.int64, ("B",)),
            *(tree_specs(slots) if tree else ()),
            TensorSpec(SOURCE_LENGTHS, torch.int64, ("B",)),
            *cross,
            *cache_specs(found.own, prefix, slots, model.dtype),
        )

    def compute(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Logits [B, T, V] and the updated caches."""
        names = [spec.name for spec in self.inputs if spec.is_cache]
        cross = [tensors[name] for name in self.cross_names]
        tokens, lengths, count = tensors["tokens"], tensors["lengths"], self.found.num_layers
        chain = lengths[:, None] + torch.arange(tokens.shape[1])
        # Slots past max_length hold tokens that are thrown away; position tables end there.
        positions = tensors.get("positions", chain).clamp(max=self.max_length - 1)
        slots = tensors.get("slot_positions", torch.arange(self.slots)[None])
        visible = slots[:, None, None, :] <= positions[:, None, :, None]
        if "visible" in tensors:
            visible = visible & tensors["visible"]
        run = _DecoderRun(
            lengths,
            self.biases(positions, slots, visible),
            _source_visible(tensors[SOURCE_LENGTHS], cross[0].shape[2]),
            dict(enumerate(cross[:count])),
            [tensors[name] for name in names],
        )
        cache = EncoderDecoderCache(
            PassThroughCache(self.slots), _FilledCache(cross[:count], cross[count:])
        )
        # Nobody looks at the states of the encoder: keys and values are there already.
        states = cross[0][:, 0]
        with active(run), _at_positions(self.found.tables, positions):
            logits = decode(self.model, tokens, states, cache, visible, run.source_visible)
        return {"logits": logits} | {
            updated_name(name): cache for name, cache in zip(names, run.caches, strict=True)
        }


class _Biases(nn.Module):
    """Masks by layer: what a token sees and, where the model adds one, the bias by distance."""

    def __init__(self, tables: Mapping[int, Tensor]) -> None:
        super().__init__()
        self.tables: list[Tensor] = []
        self.of_layer: dict[int, int] = {}
        for layer, table in tables.items():
            same = [i for i, known in enumerate(self.tables) if torch.equal(known, table)]
            if not same:
                self.tables.append(table)
                self.register_buffer(f"table{len(self.tables) - 1}", table)
            self.of_layer[layer] = same[0] if same else len(self.tables) - 1

    def forward(
        self, positions: Tensor, slot_positions: Tensor, visible: Tensor
    ) -> Callable[[int], Tensor]:
        """From a layer's index to its mask, as `cached_attention` takes it."""
        distance = (positions[:, :, None] - slot_positions[:, None, :]).clamp(min=0)
        masks: dict[int, Tensor] = {}

        def of_layer(layer: int) -> Tensor:
            place = self.of_layer.get(layer)
            if place is None:
                return visible
            if place not in masks:
                table: Tensor = getattr(self, f"table{place}")
                bias = functional.embedding(distance, table).permute(0, 3, 1, 2)
                masks[place] = bias.masked_fill(~visible, float("-inf"))
            return masks[place]

        return of_layer


@dataclass
class _DecoderRun(NoAttention):
    """A decoder over its caches and its source."""

    lengths: Tensor
    masks: Callable[[int], Tensor]
    source_visible: Tensor
    cross_keys: Mapping[int, Tensor]
    caches: list[Tensor] = field(default_factory=list)

    def attend(self, call: Attention) -> Tensor:
        """Attention over the source, or with the cache write of its layer."""
        layer = call.layer
        if call.key is self.cross_keys[layer]:
            return masked_attention(
                call.query, call.key, call.value, self.source_visible, call.scale, call.softcap
            )
        key, value = layer, len(self.cross_keys) + layer
        output, self.caches[key], self.caches[value] = cached(
            call, self.caches[key], self.caches[value], self.lengths, self.masks(layer)
        )
        return output


class _FilledLayer(NamedTuple):
    keys: Tensor
    values: Tensor


class _FilledCache(Cache):
    """Says that keys and values of the source are there, and gives them."""

    def __init__(self, keys: list[Tensor], values: list[Tensor]) -> None:
        layers: list[Any] = [_FilledLayer(*pair) for pair in zip(keys, values, strict=True)]
        super().__init__(layers=layers)

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        return 1


@contextmanager
def _at_positions(tables: Mapping[nn.Module, int], positions: Tensor) -> Iterator[None]:
    """While active, `tables` give their rows at `positions` [B, T], whatever they are asked for."""
    with ExitStack() as undo:
        for module, first in tables.items():

            def look_up(
                *_: Any, module: nn.Module = module, first: int = first, **__: Any
            ) -> Tensor:
                return functional.embedding(positions + first, module.weight)  # type: ignore[arg-type]

            setattr(module, "forward", look_up)  # noqa: B010 (not a declared attribute)
            undo.callback(delattr, module, "forward")
        yield


def _source_visible(source_lengths: Tensor, num_tokens: int) -> Tensor:
    """Which tokens of a padded source are real: [B, 1, 1, N] bool."""
    return (torch.arange(num_tokens) < source_lengths[:, None])[:, None, None, :]
