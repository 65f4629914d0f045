"""Every sampling rule as a graph: the tokens of torch, and the target's law over 200,000 rounds."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest
import torch
from scipy import stats

from spec_compile.acceptance import RULES, SeveralDraftsRule
from spec_compile.config import ACCEPTANCE_RULES, RULES_FOR_SEVERAL_DRAFTS
from spec_compile.passes.draft_candidates import first_tokens
from spec_compile.sampling import sample
from tests.acceptance.graphs import Array, Bare, Graph

V, K, ROUNDS = 4, 3, 200_000
SAMPLING = [name for name, rule in RULES.items() if rule.samples]


def sizes(name: str) -> tuple[int, ...]:
    """Shape of `draft_tokens` behind the rows."""
    length = 1 if name == "topk_plus_one" else 2
    return (K, length) if isinstance(RULES[name], SeveralDraftsRule) else (length,)


@cache
def graph(name: str, vocab_size: int = V) -> Graph:
    shape = sizes(name)
    num_drafts = shape[0] if len(shape) == 2 else 1
    (width,) = RULES[name].uniforms_shape(num_drafts, shape[-1])
    examples = {
        "draft_tokens": torch.zeros(2, *shape, dtype=torch.int64),
        "draft_probs": torch.full((2, *shape, vocab_size), 1 / vocab_size),
        "target_probs": torch.full((2, *shape[:-1], shape[-1] + 1, vocab_size), 1 / vocab_size),
        "uniforms": torch.zeros(2, width),
    }
    return Graph(Bare(RULES[name]), examples)


@cache
def tables() -> tuple[torch.Tensor, torch.Tensor]:
    """Draft and target law after each last token, the first row the start: related, not equal."""
    generator = torch.Generator().manual_seed(11)
    target = torch.randn(V, V, generator=generator)
    draft = target + 0.8 * torch.randn(V, V, generator=generator)
    return draft.softmax(-1), target.softmax(-1)


def rounds(name: str, count: int, seed: int) -> dict[str, torch.Tensor]:
    """Rounds of models that look at the last token only, drafted as the rule needs."""
    draft, target = tables()
    generator = torch.Generator().manual_seed(seed)
    shape, rule = sizes(name), RULES[name]
    num_drafts = shape[0] if len(shape) == 2 else 1
    if rule.uses_draft_probs:
        uniforms = torch.rand(count, num_drafts, generator=generator)
        law = draft[0].expand(count, -1)
        last = first_tokens(rule.drafting, law, law.log(), uniforms)
    else:
        last = draft[0].argmax().expand(count, num_drafts)
    states = [torch.zeros_like(last), last]
    for _ in range(shape[-1] - 1):
        laws = draft[states[-1]].flatten(0, 1)
        drawn = sample(laws, torch.rand(len(laws), generator=generator))
        best = laws.argmax(-1)
        states.append((drawn if rule.uses_draft_probs else best).view(count, num_drafts))
    path = torch.stack(states, dim=2)
    tensors = {
        "draft_tokens": path[..., 1:],
        "draft_probs": draft[path[..., :-1]],
        "target_probs": target[path],
    }
    if len(shape) == 1:
        tensors = {key: value[:, 0] for key, value in tensors.items()}
    (width,) = rule.uniforms_shape(num_drafts, shape[-1])
    return tensors | {"uniforms": torch.rand(count, width, generator=generator)}


@pytest.mark.parametrize("name", SAMPLING)
def test_the_graph_emits_what_torch_does(name: str) -> None:
    tensors = rounds(name, 4000, seed=1)
    output, count = graph(name)(**{key: value.numpy() for key, value in tensors.items()})
    expected, expected_count = RULES[name](*tensors.values())
    differ = (output != expected.numpy()).any(1)
    assert differ.mean() <= 1e-3  # sums in another order: a uniform within rounding of an edge
    np.testing.assert_array_equal(count[~differ], expected_count.numpy()[~differ])
    assert set(graph(name).op_types()).isdisjoint({"RandomUniform", "Multinomial", "Bernoulli"})


def p_value(name: str, seed: int, *, biased: bool = False) -> float:
    """Chi-square of 200,000 rounds against the target's joint law."""
    tensors = rounds(name, ROUNDS, seed)
    if biased:
        flat = tensors["draft_probs"] ** 0.5
        tensors["draft_probs"] = flat / flat.sum(-1, keepdim=True)
    output, count = graph(name)(**{key: value.numpy() for key, value in tensors.items()})
    completed = _complete(output, count, seed)
    target = tables()[1].double().numpy()
    paths = list(itertools.product(range(V), repeat=completed.shape[1]))
    steps = ([*itertools.pairwise((0, *path))] for path in paths)
    expected = np.array([np.prod([target[a, b] for a, b in step]) for step in steps])
    codes = completed @ V ** np.arange(completed.shape[1])[::-1]
    observed = np.bincount(codes, minlength=len(paths))
    return float(stats.chisquare(observed, expected / expected.sum() * ROUNDS).pvalue)


def _complete(output: Array, count: Array, seed: int) -> Array:
    """Rounds that ended early, continued by the target itself."""
    rng, target = np.random.default_rng(seed), tables()[1].double().numpy()
    for position in range(1, output.shape[1]):
        missing = np.flatnonzero(count <= position)
        cumulative = target[output[missing, position - 1]].cumsum(-1)
        cumulative[:, -1] = 1
        draws = rng.random((len(missing), 1))
        output[missing, position] = (cumulative <= draws).sum(-1)
    return output


def test_the_command_line_offers_every_rule_for_its_number_of_drafts() -> None:
    assert set(ACCEPTANCE_RULES) == set(RULES)
    several = {name for name, rule in RULES.items() if isinstance(rule, SeveralDraftsRule)}
    assert set(RULES_FOR_SEVERAL_DRAFTS) == several


@pytest.mark.parametrize("name", [n for n in SAMPLING if len(sizes(n)) == 1])
def test_without_draft_tokens_it_draws_from_the_target(name: str) -> None:
    (width,) = RULES[name].uniforms_shape(1, 0)
    law = torch.tensor([[[0.25, 0.0, 0.75]]]).expand(2, 1, 3)
    uniforms = torch.tensor([[0.2], [0.3]]).expand(2, width)
    tokens, nothing = torch.zeros(2, 0, dtype=torch.int64), law[:, :0]
    output, count = RULES[name](tokens, nothing, law, uniforms)
    assert (output.tolist(), count.tolist()) == ([[0], [2]], [1, 1])


@pytest.mark.parametrize("name", [name for name in SAMPLING if RULES[name].exact])
def test_rounds_follow_the_target_s_joint_law(name: str) -> None:
    assert p_value(name, seed=101) > 1e-3


@pytest.mark.parametrize("name", [n for n in SAMPLING if not RULES[n].exact])
def test_an_approximate_rule_does_not(name: str) -> None:
    assert p_value(name, seed=101) < 1e-6


@pytest.mark.parametrize("name", ["block", "kseq", "recursive", "recursive_wor", "fanout"])
def test_a_draft_law_other_than_the_sampled_one_is_found(name: str) -> None:
    assert p_value(name, seed=101, biased=True) < 1e-6


@pytest.mark.parametrize("name", SAMPLING)
@pytest.mark.parametrize("uniform", [0.0, 0.37, 1 - 2**-24])
def test_large_vocabulary_from_half_precision(name: str, uniform: float) -> None:
    """Laws of float16 logits over 150,000 tokens, some of them forbidden: none is emitted."""
    rng = np.random.default_rng(9)
    shape = sizes(name)
    logits = rng.standard_normal((1, *shape[:-1], shape[-1] + 1, 150_000)).astype(np.float16) * 4
    logits[..., ::3] = -np.inf
    if len(shape) == 2:
        logits[:, :, 0] = logits[:, :1, 0]
    target = torch.from_numpy(logits).float().softmax(-1)
    law = torch.from_numpy(logits[..., :-1, :]).float().mul(0.9).nan_to_num(neginf=-30).softmax(-1)
    tokens = law.topk(K, dim=-1).indices
    tokens = tokens[..., 0]
    if len(shape) == 2:
        tokens[:, :, 0] = law[:, 0, 0].topk(K).indices
    (width,) = RULES[name].uniforms_shape(shape[0] if len(shape) == 2 else 1, shape[-1])
    output, count = RULES[name](tokens, law, target, torch.full((1, width), uniform))
    for position in range(int(count)):
        assert int(output[0, position]) % 3 != 0
