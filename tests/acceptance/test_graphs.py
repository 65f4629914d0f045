"""The exported graphs: the same tokens in ONNX Runtime as in torch and NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spec_compile.acceptance import RULES
from spec_compile.runtime import sampling as twins
from spec_compile.runtime.acceptance import RULES as RULE_TWINS
from tests.acceptance.graphs import OPTIONS, Array, Graph, Tail, option_arrays, tail_examples

VOCAB_SIZE = 640
NUM_DRAFTED = 3
ROWS = [
    (1.0, 0, 1.0, 0.0),
    (0.0, 0, 1.0, 0.0),
    (0.7, 20, 1.0, 0.0),
    (1.3, 0, 0.8, 0.0),
    (1.0, 0, 1.0, 0.1),
    (0.9, 300, 0.9, 0.02),
]


@pytest.fixture(scope="module")
def tail() -> Graph:
    return Graph(Tail(RULES["rejection"]), tail_examples(VOCAB_SIZE, NUM_DRAFTED))


def inputs(rows: list[tuple[float, int, float, float]], seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((len(rows), NUM_DRAFTED + 1, VOCAB_SIZE)).astype(np.float32) * 2
    noise = rng.standard_normal(logits[:, :-1].shape).astype(np.float32) * 0.3
    options = option_arrays(rows)
    sampling = twins.Sampling(*(options[name] for name in OPTIONS))
    draft_probs = twins.process_logits(logits[:, :-1] + noise, sampling)
    draws = rng.random((NUM_DRAFTED, len(rows)))
    tokens = [twins.sample(draft_probs[:, i], draws[i]) for i in range(NUM_DRAFTED)]
    return {
        "logits": logits,
        "draft_tokens": np.stack(tokens, axis=1),
        "draft_probs": draft_probs,
        "uniforms": rng.random((len(rows), NUM_DRAFTED + 1), dtype=np.float32),
        **options,
    }


def eager(feed: dict[str, Array]) -> list[Array]:
    tensors = [torch.from_numpy(value) for value in feed.values()]
    return [output.numpy() for output in Tail(RULES["rejection"])(*tensors)]


@pytest.mark.parametrize("rows", [*([row] for row in ROWS), ROWS], ids=str)
def test_graph_eager_and_twin_give_the_same_tokens(
    tail: Graph, rows: list[tuple[float, int, float, float]]
) -> None:
    for seed in range(20):
        feed = inputs(rows, seed)
        output, count = tail(**feed)
        expected, expected_count = eager(feed)
        np.testing.assert_array_equal(output, expected)
        np.testing.assert_array_equal(count, expected_count)
        sampling = twins.Sampling(*(feed[name] for name in OPTIONS))
        target_probs = twins.process_logits(feed["logits"], sampling)
        laws = feed["draft_tokens"], feed["draft_probs"], target_probs, feed["uniforms"]
        np.testing.assert_array_equal(output, RULE_TWINS["rejection"](*laws)[0])


def test_the_batch_stays_symbolic(tail: Graph) -> None:
    feed = inputs(ROWS, 77)
    whole = tail(**feed)[0]
    for row in range(len(ROWS)):
        alone = tail(**{name: value[row : row + 1] for name, value in feed.items()})[0]
        np.testing.assert_array_equal(alone, whole[row : row + 1])


def test_sorts_and_random_numbers_stay_out_of_the_plain_path(tail: Graph) -> None:
    ops = tail.op_types()
    assert "If" in ops and not {"TopK", "Softmax"} & set(ops)
    assert not {op for op in ops if op.startswith("Random") or op in ("Multinomial", "Bernoulli")}
    assert {node.domain for node in tail.model.graph.node} <= {"", "ai.onnx"}


def test_no_draft_tokens() -> None:
    class Plain(torch.nn.Module):
        def forward(self, logits: torch.Tensor, uniforms: torch.Tensor) -> tuple[torch.Tensor, ...]:
            probs = logits.softmax(dim=-1)
            tokens = torch.zeros(logits.shape[0], 0, dtype=torch.int64)
            return RULES["rejection"](tokens, probs[:, :0], probs, uniforms)

    graph = Graph(Plain(), {"logits": torch.zeros(2, 1, 48), "uniforms": torch.zeros(2, 1)})
    rng = np.random.default_rng(3)
    logits = rng.standard_normal((5, 1, 48)).astype(np.float32)
    uniforms = rng.random((5, 1), dtype=np.float32)
    output, count = graph(logits=logits, uniforms=uniforms)
    law = torch.from_numpy(logits).softmax(dim=-1).numpy()
    np.testing.assert_array_equal(output[:, 0], twins.sample(law[:, 0], uniforms[:, 0]))
    np.testing.assert_array_equal(count, np.ones(5))


def test_greedy_rule_on_raw_logits() -> None:
    class Greedy(torch.nn.Module):
        def forward(
            self, draft_tokens: torch.Tensor, logits: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            return RULES["greedy"](draft_tokens, None, logits, None)

    examples = {
        "draft_tokens": torch.zeros(2, 3, dtype=torch.int64),
        "logits": torch.zeros(2, 4, 700),
    }
    graph = Graph(Greedy(), examples)
    rng = np.random.default_rng(4)
    logits = rng.integers(0, 9, (7, 4, 700)).astype(np.float32)
    tokens = logits[:, :3].argmax(-1)
    tokens[rng.random(tokens.shape) < 0.3] = 699
    output, count = graph(draft_tokens=tokens, logits=logits)
    expected, expected_count = RULE_TWINS["greedy"](tokens, None, logits, None)
    np.testing.assert_array_equal(output, expected)
    np.testing.assert_array_equal(count, expected_count)
