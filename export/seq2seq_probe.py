"""What an encoder-decoder model does with positions and caches, learnt by running it once.

Its decoder is run over a whole row of tokens. What comes to the attention interface gives the
shapes of its caches and, if it adds one, the bias by distance; what is looked up at a, a + 1,
a + 2, .. gives its tables of positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from spec_compile.errors import CaptureError
from spec_compile.export.capture import CacheShape
from spec_compile.export.seams import Attention, PassThroughCache, active
from spec_compile.program import first_line


@dataclass(frozen=True)
class Decoder:
    """What a decoder needs.

    Args:
        own: shapes of its caches, by layer.
        cross: shapes of what its cross-attention reads, by layer.
        tables: the modules that hold a row for each position, and the row of position 0.
        biases: by layer what is added to scores, by distance and head [max_length, H].
    """

    own: Mapping[int, CacheShape]
    cross: Mapping[int, CacheShape]
    tables: Mapping[nn.Module, int]
    biases: Mapping[int, Tensor]

    @property
    def num_layers(self) -> int:
        """Layers of the decoder."""
        return len(self.own)


class CollectingCache(Cache):
    """Takes down the keys and values that cross-attention computes."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    def update(self, key_states: Tensor, value_states: Tensor, *layer: Any, **_: Any) -> Any:
        """Keep both."""
        self.keys[layer[0]], self.values[layer[0]] = key_states, value_states
        return key_states, value_states


class NoAttention:
    """Computes no attention, where nobody uses what comes of it; a `Run` of the seams."""

    def attend(self, call: Attention) -> Tensor:
        """Anything of the right shape."""
        return call.query.new_zeros((*call.query.shape[:-1], call.value.shape[-1]))

    def mask(self, mask_function: Callable[..., Tensor]) -> Tensor:
        """Never asked: masks are given."""
        raise CaptureError("it makes masks of its own")


@dataclass
class _Probe(NoAttention):
    """Looks at what it is asked for."""

    cross_cache: CollectingCache
    own: dict[int, CacheShape] = field(default_factory=dict)
    cross: dict[int, CacheShape] = field(default_factory=dict)
    biases: dict[int, Tensor] = field(default_factory=dict)

    def attend(self, call: Attention) -> Tensor:
        """Zeros."""
        layer = call.layer
        if call.key is self.cross_cache.keys.get(layer):
            if call.bias is not None and bool(call.bias.any()):
                raise CaptureError("its cross-attention has a position bias")
            self.cross[layer] = CacheShape.of(call)
        elif layer in self.own:
            raise CaptureError(f"layer {layer} attends to its own tokens more than once")
        else:
            self.own[layer] = CacheShape.of(call)
            if call.bias is not None:
                self.biases[layer] = call.bias[0]
        return super().attend(call)


class _Lookups(TorchFunctionMode):
    """Takes down the tables that are read at a, a + 1, a + 2, ..: the weight, and a."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__()
        self.steps = torch.arange(num_tokens)
        self.found: list[tuple[Tensor, int]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.embedding:
            index, weight = args[:2]
            rows = index.flatten()
            if rows.numel() == len(self.steps) and bool((rows - rows[0] == self.steps).all()):
                self.found.append((weight, int(rows[0])))
        return func(*args, **(kwargs or {}))


def probe_decoder(model: PreTrainedModel, max_length: int) -> Decoder:
    """Run the decoder of `model` over `max_length` tokens and one source token.

    Raises:
        CaptureError: it cannot be captured; the message says why.
    """
    cross = CollectingCache()
    run, lookups = _Probe(cross), _Lookups(max_length)
    try:
        with torch.no_grad(), active(NoAttention()):
            states = encoder_states(model, torch.zeros(1, 1, dtype=torch.int64))
        with torch.no_grad(), active(run), lookups:
            cache = EncoderDecoderCache(PassThroughCache(max_length), cross)
            decode(model, torch.zeros(1, max_length, dtype=torch.int64), states, cache)
    except CaptureError as error:
        raise CaptureError(f"cannot capture {type(model).__name__}: {error}") from error
    except Exception as error:
        raise CaptureError(
            f"{type(model).__name__} does not run as an encoder and a decoder: {first_line(error)}"
        ) from error
    layers = list(range(len(run.own)))
    if not layers or sorted(run.own) != layers or sorted(run.cross) != layers:
        raise CaptureError(
            f"{type(model).__name__} attends to its own tokens in {len(run.own)} layers and to its "
            f"source in {len(run.cross)} through the attention interface; each decoder layer must "
            "do both"
        )
    tables = {_owner(model, weight): row for weight, row in lookups.found}
    biases = {layer: _by_distance(model, bias) for layer, bias in run.biases.items()}
    return Decoder(run.own, run.cross, tables, biases)


def encoder_states(model: PreTrainedModel, tokens: Tensor, visible: Tensor | None = None) -> Tensor:
    """The encoder's last states [B, N, H]; `visible` [B, 1, 1, N] bool, all if left out."""
    if visible is None:
        visible = torch.ones(1, 1, 1, tokens.shape[1], dtype=torch.bool)
    states: Tensor = model.get_encoder()(input_ids=tokens, attention_mask=visible)[0]
    return states


def decode(
    model: PreTrainedModel,
    tokens: Tensor,
    states: Tensor,
    cache: EncoderDecoderCache,
    visible: Tensor | None = None,
    source_visible: Tensor | None = None,
) -> Tensor:
    """Logits [B, T, V]: the model's own forward behind its encoder.

    Args:
        model: the whole model.
        tokens: [B, T].
        states: the encoder's, [B, N, H].
        cache: what its layers ask for keys and values.
        visible: [B, 1, T, S] bool, which slots a token sees.
        source_visible: [B, 1, 1, N] bool.
    """
    everything = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    output = model(
        encoder_outputs=BaseModelOutput(last_hidden_state=states),
        attention_mask=everything if source_visible is None else source_visible,
        decoder_input_ids=tokens,
        decoder_attention_mask=everything if visible is None else visible,
        cache=cache,
        use_cache=True,
    )
    logits: Tensor = output.logits
    return logits


def _owner(model: PreTrainedModel, weight: Tensor) -> nn.Module:
    for module in model.modules():
        if getattr(module, "weight", None) is weight:
            return module
    raise CaptureError(f"{type(model).__name__} looks up positions in a table of no module")


def _by_distance(model: PreTrainedModel, bias: Tensor) -> Tensor:
    """A bias [H, T, T] by query and key as one by distance [T, H].

    Raises:
        CaptureError: it depends on more than the distance.
    """
    steps = torch.arange(bias.shape[-1])
    table = bias[:, -1].flip(-1).T.contiguous()
    distance = steps[:, None] - steps
    past = distance >= 0
    if not torch.equal(table[distance[past]].T, bias[:, past]):
        raise CaptureError(
            f"the position bias of {type(model).__name__} depends on more than the distance of two "
            "tokens"
        )
    return table
