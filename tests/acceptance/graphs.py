"""Graphs of the sampling functions and rules, exported and opened in ONNX Runtime."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import torch
from torch import Tensor, nn

from spec_compile.acceptance import RULES, Rule
from spec_compile.acceptance.base import take_rows
from spec_compile.sampling import Sampling, process_logits, sample

Array = npt.NDArray[Any]
OPTIONS = ("temperature", "top_k", "top_p", "min_p")


class Graph:
    """A module exported with a symbolic first dimension, run by name in ONNX Runtime."""

    def __init__(self, module: nn.Module, examples: Mapping[str, Tensor]) -> None:
        self.names = tuple(examples)
        self.model = _export(module, examples)
        options = ort.SessionOptions()
        options.intra_op_num_threads = 2
        options.log_severity_level = 3
        self.session = ort.InferenceSession(
            self.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def __call__(self, **inputs: Array) -> list[Array]:
        known = {node.name for node in self.session.get_inputs()}
        outputs: list[Array] = self.session.run(
            None, {name: value for name, value in inputs.items() if name in known}
        )
        return outputs

    def op_types(self) -> list[str]:
        """Operators of the main graph, those inside branches left out."""
        return [node.op_type for node in self.model.graph.node]


def _export(module: nn.Module, examples: Mapping[str, Tensor]) -> Any:
    batch = torch.export.Dim("B", min=1, max=1 << 20)
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module.eval(),
                tuple(examples.values()),
                dynamo=True,
                dynamic_shapes=[{0: batch} for _ in examples],
                input_names=list(examples),
                opset_version=24,
                verbose=False,
            )
    finally:
        logging.disable(previous)
    assert program is not None
    return program.model_proto


def sampling_examples() -> dict[str, Tensor]:
    """Options of two rows, as example inputs."""
    return {
        "temperature": torch.ones(2),
        "top_k": torch.zeros(2, dtype=torch.int64),
        "top_p": torch.ones(2),
        "min_p": torch.zeros(2),
    }


def option_arrays(rows: Sequence[tuple[float, int, float, float]]) -> dict[str, Array]:
    """Rows of (temperature, top_k, top_p, min_p) as graph inputs."""
    dtypes = (np.float32, np.int64, np.float32, np.float32)
    columns = zip(*rows, strict=True)
    return {
        name: np.array(column, dtype)
        for name, column, dtype in zip(OPTIONS, columns, dtypes, strict=True)
    }


class Tail(nn.Module):
    """What follows the target's head: sampling transforms and one acceptance rule."""

    def __init__(self, rule: Rule) -> None:
        super().__init__()
        self.rule = rule

    def forward(
        self,
        logits: Tensor,
        draft_tokens: Tensor,
        draft_probs: Tensor,
        uniforms: Tensor,
        temperature: Tensor,
        top_k: Tensor,
        top_p: Tensor,
        min_p: Tensor,
    ) -> tuple[Tensor, Tensor]:
        target_probs = process_logits(logits, Sampling(temperature, top_k, top_p, min_p))
        return self.rule(draft_tokens, draft_probs, target_probs, uniforms)


def tail_examples(vocab_size: int, num_drafted: int) -> dict[str, Tensor]:
    """Example inputs of `Tail`."""
    return {
        "logits": torch.zeros(2, num_drafted + 1, vocab_size),
        "draft_tokens": torch.zeros(2, num_drafted, dtype=torch.int64),
        "draft_probs": torch.full((2, num_drafted, vocab_size), 1 / vocab_size),
        "uniforms": torch.zeros(2, num_drafted + 1),
        **sampling_examples(),
    }


class Bare(nn.Module):
    """One acceptance rule alone, on laws."""

    def __init__(self, rule: Rule) -> None:
        super().__init__()
        self.rule = rule

    def forward(
        self, draft_tokens: Tensor, draft_probs: Tensor, target_probs: Tensor, uniforms: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self.rule(draft_tokens, draft_probs, target_probs, uniforms)


class MarkovRound(nn.Module):
    """A whole round where both models only look at the last token.

    Rows where `raw` is True have a bug: the rule sees the draft's law before temperature and
    filters, not the one that was sampled.
    """

    def __init__(self, draft: Tensor, target: Tensor, num_drafted: int) -> None:
        super().__init__()
        self.draft = nn.Buffer(draft)
        self.target = nn.Buffer(target)
        self.num_drafted = num_drafted

    def forward(
        self,
        state: Tensor,
        raw: Tensor,
        uniforms: Tensor,
        temperature: Tensor,
        top_k: Tensor,
        top_p: Tensor,
        min_p: Tensor,
    ) -> tuple[Tensor, Tensor]:
        sampling = Sampling(temperature, top_k, top_p, min_p)
        batch, vocab_size = state.shape[0], self.draft.shape[-1]
        # All rows of both tables in one call: its branches are slow to trace.
        tables = torch.cat([self.draft, self.target]).expand(batch, -1, -1)
        laws = process_logits(tables, sampling)
        draft, target = laws[:, :vocab_size], laws[:, vocab_size:]
        path = [state]
        for step in range(self.num_drafted):
            path.append(sample(take_rows(draft, path[-1]), uniforms[:, step]))
        draft = torch.where(raw[:, None, None], self.draft.softmax(dim=-1), draft)
        draft_probs = torch.stack([take_rows(draft, state) for state in path[:-1]], dim=1)
        target_probs = torch.stack([take_rows(target, state) for state in path], dim=1)
        tokens = torch.stack(path[1:], dim=1)
        return RULES["rejection"](
            tokens, draft_probs, target_probs, uniforms[:, self.num_drafted :]
        )
