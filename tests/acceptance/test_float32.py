"""Error of the drawn laws in float32 over 150,000 tokens, from float16 logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from spec_compile.acceptance import RULES, SeveralDraftsRule
from spec_compile.acceptance import block as block_module
from spec_compile.acceptance import fanout as fanout_module
from spec_compile.acceptance import recursive as recursive_module
from spec_compile.acceptance import rejection as rejection_module
from spec_compile.acceptance import walk as walk_module
from spec_compile.acceptance.kseq import largest_scale
from spec_compile.planning.transport import kseq_acceptance
from spec_compile.sampling import sample

V, K = 150_000, 4
MODULES = (
    block_module,
    fanout_module,
    recursive_module,
    rejection_module,
    walk_module,
)
NAMES = [name for name, rule in RULES.items() if rule.uses_draft_probs]
# Of the error in the output law: how often a test fails, times the total variation between what
# float32 and float64 draw from then.
BOUND = 5e-6


def laws(num_rows: int, noise: float) -> tuple[Tensor, Tensor]:
    """Draft and target laws [num_rows, V]: Zipf-like, apart by `noise` in the logits."""
    rng = np.random.default_rng(5)
    ranks = rng.permuted(np.tile(np.arange(1, V + 1), (num_rows, 1)), axis=1)
    logits = (rng.standard_normal(ranks.shape) - 1.6 * np.log(ranks)).astype(np.float16)
    other = (logits + noise * rng.standard_normal(logits.shape)).astype(np.float16)
    draft, target = (torch.from_numpy(each).float().softmax(-1) for each in (other, logits))
    return draft, target


def drawn_laws(
    name: str, inputs: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> tuple[Tensor, list[Tensor]]:
    """What the rule emits, and the normalised weights of everything that it draws."""
    seen: list[Tensor] = []

    def spy(weights: Tensor, uniforms: Tensor) -> Tensor:
        seen.append(weights.double() / weights.double().sum(-1, keepdim=True))
        return sample(weights, uniforms)

    for module in MODULES:
        monkeypatch.setattr(module, "sample", spy)
    output, _ = RULES[name](*inputs)
    return output, seen


@pytest.mark.parametrize("noise", [0.5, 1e-3])
@pytest.mark.parametrize("name", NAMES)
def test_law_after_a_rejection(name: str, noise: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test of the first position fails: its tokens are those the draft proposes too often."""
    several = isinstance(RULES[name], SeveralDraftsRule)
    length = 1 if name == "topk_plus_one" else 2
    draft, target = laws(length + 1, noise)
    draft = draft[:length]
    lead = (K,) if several else ()
    tokens = (draft[0] / target[0]).topk(K if several else 1).indices
    tokens = tokens[..., None].expand(-1, length).reshape(1, *lead, length)
    (width,) = RULES[name].uniforms_shape(K if several else 1, length)
    inputs = [
        tokens,
        draft.expand(1, *lead, -1, -1),
        target.expand(1, *lead, -1, -1),
        torch.full((1, width), 1 - 2**-24),
    ]
    double = [inputs[0], *(each.double() for each in inputs[1:])]
    output, single_laws = drawn_laws(name, inputs, monkeypatch)
    _, double_laws = drawn_laws(name, double, monkeypatch)
    assert single_laws and len(single_laws) == len(double_laws)
    assert name == "lenient" or (output[0, 1:] == -1).all()
    failures = 1 - float(torch.minimum(draft[0], target[0]).double().sum())
    for single, exact in zip(single_laws, double_laws, strict=True):
        assert failures * float((single - exact).abs().sum()) / 2 < BOUND


@pytest.mark.parametrize("noise", [0.5, 1e-3])
@pytest.mark.parametrize("count", [2, 8])
def test_scale_of_kseq_is_valid_and_good(count: int, noise: float) -> None:
    """In float32 too the scale leaves a law to draw from, and costs less than 1 %."""
    draft, target = laws(1, noise)
    scale = largest_scale(draft, target, torch.tensor([[count]])).double()
    draft, target = draft.double(), target.double()
    taken = torch.minimum(draft, scale * target)
    mass = taken.sum(-1, keepdim=True)
    accepted = 1 - (1 - mass) ** count
    assert float((target - taken * accepted / mass).min()) >= 0
    best = kseq_acceptance(draft[0].numpy(), target[0].numpy(), count)
    assert 0.99 * best <= float(accepted) <= best + 1e-6
