"""One pair of tiny models, composed and built for ONNX Runtime once for all tests of export."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from spec_compile.config import SpecConfig
from spec_compile.program import Graph, Program
from tests.helpers.captured import (
    capture_pair,
    eager_model,
    empty_caches,
    random_tokens,
    run_pipeline,
)
from tests.helpers.onnx_files import OnnxFile, build_onnx
from tests.helpers.tiny_models import VOCAB_SIZE

MAX_LENGTH = 24
CONFIG = SpecConfig(num_speculative_tokens=2, acceptance="rejection", fusion="verify")


@dataclass(frozen=True)
class OnnxPair:
    """Models, the program that the pipeline made of them, and its graphs in ONNX Runtime."""

    models: dict[str, PreTrainedModel]
    program: Program
    folder: Path
    files: dict[str, OnnxFile]


@pytest.fixture(scope="session")
def onnx_pair(tmp_path_factory: pytest.TempPathFactory) -> OnnxPair:
    """A target with tied weights and a draft without, with biases."""
    target = eager_model("llama", seed=1, tie_word_embeddings=True)
    draft = eager_model("qwen2", seed=2, num_hidden_layers=1)
    captured = capture_pair(target, draft, CONFIG, MAX_LENGTH)
    program = run_pipeline(captured, CONFIG, MAX_LENGTH)
    folder = tmp_path_factory.mktemp("onnx_pair")
    paths = build_onnx(program, folder, VOCAB_SIZE, target=target, draft=draft)
    files = {name: OnnxFile(path, program.graphs[name]) for name, path in paths.items()}
    return OnnxPair({"target": target, "draft": draft}, program, folder, files)


def round_inputs(graph: Graph, rows: int, width: int) -> dict[str, Tensor]:
    """Inputs for a call of `graph`: row 0 is full, row 1 shorter, row 2 greedy and standing still.

    What is in the caches is noise, which is as good as any history.
    """
    generator = torch.Generator().manual_seed(rows * 10 + width)
    k = CONFIG.num_speculative_tokens
    num_uniforms = next(spec.shape[1] for spec in graph.inputs if spec.name == "uniforms")
    inputs = {
        "tokens": random_tokens(rows, width, seed=width),
        "num_new": torch.tensor([width, max(1, width - 1), 0])[:rows],
        "lengths": torch.tensor([3, 0, 9])[:rows],
        "draft_tokens": random_tokens(rows, k, seed=width + 1),
        "draft_probs": torch.rand(rows, k, VOCAB_SIZE, generator=generator).softmax(-1),
        "temperature": torch.tensor([0.9, 1.3, 0.0])[:rows],
        "top_k": torch.tensor([0, 9, 0])[:rows],
        "top_p": torch.tensor([1.0, 0.8, 1.0])[:rows],
        "min_p": torch.tensor([0.0, 0.05, 0.0])[:rows],
        "uniforms": torch.rand(rows, int(num_uniforms), generator=generator),
    }
    return inputs | empty_caches(graph, rows)
