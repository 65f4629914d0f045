"""Captured graphs of tiny models, run with their caches, and what transformers says to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from spec_compile.config import SpecConfig
from spec_compile.export.capture import capture
from spec_compile.export.seams import IMPLEMENTATION
from spec_compile.export.weight_names import name_weights_of
from spec_compile.passes.instruments import Instrument
from spec_compile.passes.manager import PassManager
from spec_compile.passes.pipeline import build_pipeline
from spec_compile.program import Graph, Program, as_function, call
from tests.helpers.tiny_models import VOCAB_SIZE, tiny_model


def eager_model(kind: str, *, seed: int = 0, **options: Any) -> PreTrainedModel:
    """`tiny_model` with transformers' own eager attention."""
    model = tiny_model(kind, seed=seed, **options)
    model.set_attn_implementation("eager")
    model.requires_grad_(False)
    return model


def capture_model(
    model: PreTrainedModel,
    *,
    max_length: int = 32,
    slots: int = 36,
    batch_size: int = 8,
    prefix: str = "",
    tree: bool = False,
) -> Graph:
    """Capture `model`, which stays switched to our attention."""
    model.set_attn_implementation(IMPLEMENTATION)
    return capture(
        model,
        max_length=max_length,
        slots=slots,
        batch_size=batch_size,
        prefix=prefix,
        tree=tree,
    )


def capture_pair(
    target: PreTrainedModel, draft: PreTrainedModel, config: SpecConfig, max_length: int
) -> Program:
    """The program that the pipeline starts from."""
    graphs = {
        name: capture_model(
            model,
            max_length=max_length,
            slots=max_length + config.num_drafts * config.num_speculative_tokens,
            batch_size=config.batch_size,
            prefix=prefix,
            tree=config.num_drafts > 1,
        )
        for name, model, prefix in (("target", target, ""), ("draft", draft, "draft_"))
    }
    return Program(graphs, name_weights_of({"target": target, "draft": draft}))


def run_pipeline(
    program: Program, config: SpecConfig, max_length: int, *instruments: Instrument
) -> Program:
    """The graphs of a bundle for a vocabulary of VOCAB_SIZE ids."""
    passes = build_pipeline(config, vocab_size=VOCAB_SIZE, max_length=max_length)
    return PassManager(passes, instruments).run(program)


def eager_logits(model: PreTrainedModel, tokens: Sequence[int] | Tensor) -> Tensor:
    """Logits [T, V] of transformers' own forward over one row of tokens."""
    with torch.no_grad():
        ids = torch.as_tensor(tokens)[None]
        logits: Tensor = model(input_ids=ids, use_cache=False).logits[0]
    return logits


def empty_caches(graph: Graph, num_rows: int) -> dict[str, Tensor]:
    """Caches by name, filled with noise: nobody may read an entry that was not written."""
    generator = torch.Generator().manual_seed(99)
    return {
        spec.name: torch.randn([num_rows, *_numbers(spec.shape)], generator=generator)
        for spec in graph.inputs
        if spec.is_cache
    }


def updated_caches(graph: Graph, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Caches after a call, by the names of the inputs; of several writes the last."""
    return {spec.alias_of: outputs[spec.name] for spec in graph.outputs if spec.alias_of}


class CachedRun:
    """A captured model and its caches, fed call by call."""

    def __init__(self, graph: Graph, num_rows: int) -> None:
        self.graph, self.module = graph, as_function(graph)
        self.caches = empty_caches(graph, num_rows)

    def __call__(self, tokens: Tensor, lengths: Sequence[int]) -> Tensor:
        """Logits [B, T, V] of `tokens` [B, T] behind `lengths` valid cache entries per row."""
        inputs = {"tokens": tokens, "lengths": torch.tensor(lengths), **self.caches}
        with torch.no_grad():
            outputs = call(self.graph, self.module, inputs)
        self.caches = updated_caches(self.graph, outputs)
        return outputs["logits"]


def random_tokens(*shape: int, seed: int = 0, vocab_size: int = VOCAB_SIZE) -> Tensor:
    """Token ids [*shape]."""
    return torch.randint(vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def _numbers(shape: tuple[int | str, ...]) -> list[int]:
    return [size for size in shape if isinstance(size, int)]
