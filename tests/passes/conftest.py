"""One captured pair for all tests of passes, and a round written as plain Python."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from spec_compile.acceptance import RULES
from spec_compile.config import SpecConfig
from spec_compile.program import Program
from spec_compile.sampling import Sampling, process_logits, sample
from tests.helpers.captured import (
    CachedRun,
    capture_pair,
    eager_logits,
    eager_model,
    random_tokens,
)
from tests.helpers.tiny_models import VOCAB_SIZE

MAX_LENGTH, K = 16, 3
# Tokens already in the caches of each row; the last row stands still.
LENGTHS = (0, 3, 6, 1, 0)
OPTIONS = ("temperature", "top_k", "top_p", "min_p")


@dataclass(frozen=True)
class Pair:
    """A captured pair, and its models as transformers runs them."""

    program: Program
    target: PreTrainedModel
    draft: PreTrainedModel


def config_of(fusion: str, acceptance: str) -> SpecConfig:
    """A configuration with k = K."""
    return SpecConfig(num_speculative_tokens=K, fusion=fusion, acceptance=acceptance)


@pytest.fixture(scope="session")
def pair() -> Pair:
    """Two models that agree now and then: the draft is the target with noise on its weights."""
    models = [_model(noise) for noise in (0.0, 0.0, 0.05, 0.05)]
    captured = capture_pair(models[0], models[2], config_of("verify", "rejection"), MAX_LENGTH)
    return Pair(captured, models[1], models[3])


def _model(noise: float) -> PreTrainedModel:
    model = eager_model("llama", seed=1, num_hidden_layers=1)
    generator = torch.Generator().manual_seed(7)
    for weight in model.parameters():
        weight.data += noise * torch.randn(weight.shape, generator=generator)
    return model


@dataclass(frozen=True)
class Round:
    """Inputs of one round over several rows.

    Args:
        tensors: the inputs by name, caches of both models included.
        committed: each row's tokens, those new to this round included; empty for a row at rest.
    """

    tensors: dict[str, Tensor]
    committed: list[list[int]]


def random_round(pair: Pair, width: int, num_uniforms: int, seed: int = 0) -> Round:
    """A round of up to `width` new tokens a row, behind LENGTHS tokens in the caches.

    What lies behind a row's new tokens, and in the caches behind its length, is noise.
    """
    rows = len(LENGTHS)
    generator = torch.Generator().manual_seed(seed)
    num_new = torch.tensor([width, max(1, width - 1), 1, width, 0])
    old, tokens = random_tokens(rows, max(LENGTHS), seed=seed), random_tokens(rows, width, seed=9)
    caches: dict[str, Tensor] = {}
    for name in ("target", "draft"):
        run = CachedRun(pair.program.graphs[name], rows)
        run(old, [0] * rows)
        caches |= run.caches
    sampling = {
        "temperature": torch.tensor([1.0, 0.7, 0.0, 1.5, 0.0]),
        "top_k": torch.tensor([0, 5, 0, 0, 0]),
        "top_p": torch.tensor([1.0, 1.0, 1.0, 0.9, 1.0]),
        "min_p": torch.tensor([0.0, 0.0, 0.0, 0.02, 0.0]),
        "uniforms": torch.rand(rows, num_uniforms, generator=generator),
    }
    new = {"tokens": tokens, "num_new": num_new, "lengths": torch.tensor(LENGTHS)}
    committed = [
        [*old[row, :length].tolist(), *tokens[row, : int(num_new[row])].tolist()]
        for row, length in enumerate(LENGTHS)
    ]
    return Round({**new, **sampling, **caches}, committed)


def row_sampling(tensors: dict[str, Tensor], row: int) -> Sampling:
    """The sampling options of one row."""
    return Sampling(*(tensors[name][row : row + 1] for name in OPTIONS))


def propose(
    model: PreTrainedModel, committed: list[int], sampling: Sampling | None, uniforms: Tensor
) -> tuple[list[int], Tensor]:
    """K tokens of one row, each from a whole forward, and their laws; greedy without `sampling`."""
    proposed: list[int] = []
    laws: list[Tensor] = []
    for index in range(K):
        logits = eager_logits(model, committed + proposed)[-1:]
        if sampling is None:
            proposed.append(int(logits.argmax()))
            continue
        law = process_logits(logits[None], sampling)[0]
        proposed.append(int(sample(law, uniforms[index : index + 1])))
        laws.append(law[0])
    return proposed, torch.stack(laws) if laws else torch.zeros(0, VOCAB_SIZE)


def verify_and_accept(
    model: PreTrainedModel,
    committed: list[int],
    drafted: tuple[list[int], Tensor],
    sampling: Sampling | None,
    uniforms: Tensor,
) -> tuple[list[int], int]:
    """What one row emits, -1 in the tail, and how much: one whole forward and the rule."""
    tokens, laws = drafted
    logits = eager_logits(model, committed + tokens)[-len(tokens) - 1 :][None]
    drafts = torch.tensor(tokens, dtype=torch.int64)[None]
    if sampling is None:
        output, count = RULES["greedy"](drafts, None, logits, None)
    else:
        law = process_logits(logits, sampling)
        output, count = RULES["rejection"](drafts, laws[None], law, uniforms[None])
    return output[0].tolist(), int(count)
