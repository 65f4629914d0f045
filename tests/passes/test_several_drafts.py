"""Rounds of several drafts: the tree of tokens in one row against each draft on its own."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from spec_compile.acceptance import RULES
from spec_compile.config import SpecConfig
from spec_compile.passes.draft_candidates import first_tokens
from spec_compile.program import Graph, Program, as_function, call
from spec_compile.sampling import process_logits
from tests.helpers.captured import (
    CachedRun,
    capture_model,
    eager_logits,
    eager_model,
    empty_caches,
    random_tokens,
    run_pipeline,
    updated_caches,
)
from tests.passes.conftest import row_sampling

NUM_DRAFTS, NUM_STEPS, MAX_LENGTH = 3, 2, 16
NUM_NEW, OLD = (4, 2, 1), (0, 3, 5)
KINDS = ("llama", "gemma2")


def config_of(fusion: str, acceptance: str = "kseq") -> SpecConfig:
    return SpecConfig(
        num_speculative_tokens=NUM_STEPS,
        num_drafts=NUM_DRAFTS,
        acceptance=acceptance,
        fusion=fusion,
        batch_size=4,
    )


reference = cache(lambda kind, seed: eager_model(kind, seed=seed))


@cache
def captured(kind: str, seed: int, prefix: str = "", *, tree: bool = True) -> Graph:
    slots = MAX_LENGTH + NUM_DRAFTS * NUM_STEPS
    model = eager_model(kind, seed=seed)
    return capture_model(model, max_length=MAX_LENGTH, slots=slots, prefix=prefix, tree=tree)


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def pair(kind: str) -> Program:
    """A target and a draft; both of one kind, with sliding windows in gemma2."""
    return Program({"target": captured(kind, 1), "draft": captured(kind, 2, "draft_")})


def a_round(program: Program, num_uniforms: int, seed: int = 0) -> dict[str, Tensor]:
    """New tokens of three rows behind others that their caches hold; noise behind those."""
    rows = len(OLD)
    tensors: dict[str, Tensor] = {}
    old = random_tokens(rows, max(OLD), seed=seed)
    for graph in program.graphs.values():
        run = CachedRun(graph, rows)
        width, slots = old.shape[1], run.caches[next(iter(run.caches))].shape[2]
        zero = torch.zeros(rows, dtype=torch.int64)
        inputs = {
            "tokens": old,
            "lengths": zero,
            "positions": torch.arange(width).expand(rows, -1),
            "slot_positions": torch.arange(slots).expand(rows, -1),
            "visible": torch.ones(rows, 1, width, slots, dtype=torch.bool),
        }
        tensors |= updated_caches(graph, call(graph, run.module, inputs | run.caches))
    generator = torch.Generator().manual_seed(seed)
    return tensors | {
        "tokens": random_tokens(rows, max(NUM_NEW), seed=seed + 1),
        "num_new": torch.tensor(NUM_NEW),
        "lengths": torch.tensor(OLD),
        "temperature": torch.tensor([1.0, 0.7, 0.0]),
        "top_k": torch.tensor([0, 9, 0]),
        "top_p": torch.tensor([1.0, 1.0, 1.0]),
        "min_p": torch.zeros(rows),
        "uniforms": torch.rand(rows, num_uniforms, generator=generator),
        "old": old,
    }


def committed(tensors: dict[str, Tensor], row: int) -> list[int]:
    new = tensors["tokens"][row, : NUM_NEW[row]]
    return [*tensors["old"][row, : OLD[row]].tolist(), *new.tolist()]


def law_after(
    kind: str, seed: int, tensors: dict[str, Tensor], row: int, text: list[int]
) -> Tensor:
    """The law [V] after `text` by transformers' own forward."""
    logits = eager_logits(reference(kind, seed), text)[-1][None, None]
    return process_logits(logits, row_sampling(tensors, row))[0, 0]


def test_each_draft_is_drawn_from_its_own_laws(kind: str, pair: Program) -> None:
    graph = run_pipeline(pair, config_of("verify"), MAX_LENGTH).graphs["draft"]
    tensors = a_round(pair, NUM_DRAFTS * NUM_STEPS)
    outputs = call(graph, as_function(graph), tensors)
    tokens, laws = outputs["draft_tokens"], outputs["draft_probs"]
    assert tokens.shape == (len(OLD), NUM_DRAFTS, NUM_STEPS)
    for row in range(len(OLD)):
        for draft in range(NUM_DRAFTS):
            text = committed(tensors, row)
            for step in range(NUM_STEPS):
                expected = law_after(kind, 2, tensors, row, text)
                torch.testing.assert_close(laws[row, draft, step], expected, rtol=0, atol=1e-5)
                text.append(int(tokens[row, draft, step]))
                assert expected[text[-1]] > 0


def test_verification_reads_every_draft_on_its_own(kind: str, pair: Program) -> None:
    """What is emitted is what the rule says to laws of whole forwards; the survivor is kept."""
    rule = RULES["kseq"]
    (width,) = rule.uniforms_shape(NUM_DRAFTS, NUM_STEPS)
    graph = run_pipeline(pair, config_of("verify"), MAX_LENGTH).graphs["verify"]
    for seed in range(2):
        tensors = a_round(pair, width, seed)
        drafts = random_tokens(len(OLD), NUM_DRAFTS, NUM_STEPS, seed=seed)
        drafts[:, 1, 0] = drafts[:, 0, 0]  # two drafts that begin alike
        outputs = call(graph, as_function(graph), tensors | proposals(kind, tensors, drafts))
        caches = updated_caches(graph, outputs)
        for row in range(len(OLD)):
            text = committed(tensors, row)
            laws = [
                [
                    law_after(kind, 1, tensors, row, [*text, *drafts[row, draft, :step].tolist()])
                    for step in range(NUM_STEPS + 1)
                ]
                for draft in range(NUM_DRAFTS)
            ]
            target = torch.stack([torch.stack(each) for each in laws])[None]
            law = proposals(kind, tensors, drafts)["draft_probs"][row][None]
            expected, count = rule(drafts[row][None], law, target, tensors["uniforms"][row][None])
            assert outputs["output_tokens"][row].tolist() == expected[0].tolist()
            assert int(outputs["num_emitted"][row]) == int(count)
            kept = [*text, *expected[0, : int(count) - 1].tolist()]
            fresh = CachedRun(captured(kind, 1, tree=False), 1)
            fresh(torch.tensor([kept]), [0])
            for name, expected_cache in fresh.caches.items():
                filled = caches[name][row, :, : len(kept)]
                torch.testing.assert_close(
                    filled, expected_cache[0, :, : len(kept)], rtol=0, atol=1e-4
                )


def proposals(kind: str, tensors: dict[str, Tensor], drafts: Tensor) -> dict[str, Tensor]:
    """Draft laws that favour the given drafts; those with one prefix share them."""
    vocab_size = reference(kind, 1).config.get_text_config().vocab_size
    laws = torch.full((*drafts.shape, vocab_size), 0.3 / vocab_size)
    for row in range(drafts.shape[0]):
        for draft in range(NUM_DRAFTS):
            for step in range(NUM_STEPS):
                alike = [
                    int(other[step])
                    for other in drafts[row]
                    if other[:step].tolist() == drafts[row, draft, :step].tolist()
                ]
                for token in alike:
                    laws[row, draft, step, token] += 0.7 / len(alike)
    return {"draft_tokens": drafts, "draft_probs": laws}


@pytest.mark.parametrize("acceptance", ["kseq", "recursive", "recursive_wor", "fanout"])
def test_step_is_draft_then_verify(acceptance: str) -> None:
    program = Program({"target": captured("llama", 1), "draft": captured("llama", 2, "draft_")})
    both = run_pipeline(program, config_of("verify", acceptance), MAX_LENGTH).graphs
    step = run_pipeline(program, config_of("step", acceptance), MAX_LENGTH).graphs["step"]
    (width,) = RULES[acceptance].uniforms_shape(NUM_DRAFTS, NUM_STEPS)
    drawn = NUM_DRAFTS * NUM_STEPS
    for seed in range(2):
        tensors = a_round(program, drawn + width, seed)
        first = tensors | {"uniforms": tensors["uniforms"][:, :drawn]}
        drafted = call(both["draft"], as_function(both["draft"]), first)
        rest = tensors | drafted | {"uniforms": tensors["uniforms"][:, drawn:]}
        verified = call(both["verify"], as_function(both["verify"]), rest)
        outputs = call(step, as_function(step), tensors)
        for name in ("output_tokens", "num_emitted"):
            assert torch.equal(outputs[name], verified[name])
        caches = updated_caches(step, outputs)
        for row in range(len(OLD)):
            emitted = verified["output_tokens"][row, : int(verified["num_emitted"][row]) - 1]
            # The draft model has not read the last token of each of its drafts.
            kept = [*committed(tensors, row), *emitted.tolist()[: NUM_STEPS - 1]]
            fresh = CachedRun(captured("llama", 2, "draft_", tree=False), 1)
            fresh(torch.tensor([kept]), [0])
            for name, expected_cache in fresh.caches.items():
                filled = caches[name][row, :, : len(kept)]
                torch.testing.assert_close(
                    filled, expected_cache[0, :, : len(kept)], rtol=0, atol=1e-4
                )


@pytest.mark.parametrize("name", ["kseq", "recursive_wor", "fanout"])
def test_first_tokens_follow_the_law_that_the_rule_needs(name: str) -> None:
    """Frequencies of sets of first tokens against their probabilities, over 40,000 rows."""
    rows, law = 40_000, torch.tensor([0.5, 0.3, 0.0, 0.2])
    uniforms = torch.rand(rows, 2, generator=torch.Generator().manual_seed(3))
    logits = law.log().nan_to_num(neginf=-1e9).expand(rows, -1)
    drawn = first_tokens(RULES[name].drafting, law.expand(rows, -1), logits, uniforms)
    found = torch.bincount(drawn[:, 0] * 4 + drawn[:, 1], minlength=16).view(4, 4) / rows
    expected = {
        "kseq": law[:, None] * law,
        "recursive_wor": torch.tensor(
            [[law[a] * law[b] / (1 - law[a]) * (a != b) for b in range(4)] for a in range(4)]
        ),
        "fanout": torch.tensor([[0, 0.6, 0, 0.4], [0] * 4, [0] * 4, [0] * 4]),
    }[name]
    torch.testing.assert_close(found, expected, rtol=0, atol=0.01)


@pytest.mark.parametrize("name", ["recursive_wor", "fanout"])
def test_first_tokens_differ_where_the_law_is_one_hot(name: str) -> None:
    """At temperature 0 the logits say which tokens come next."""
    law, logits = torch.tensor([[0.0, 1.0, 0.0, 0.0]]), torch.tensor([[1.0, 4.0, 3.0, 2.0]])
    drawn = first_tokens(RULES[name].drafting, law, logits, torch.tensor([[0.9, 0.9, 0.9]]))
    assert drawn.tolist() == [[1, 2, 3]]


def test_caches_of_a_round_that_never_ran_are_noise() -> None:
    """The helper of these tests fills caches with noise: nothing passes by reading zeros."""
    assert all(bool(c.any()) for c in empty_caches(captured("llama", 1), 2).values())
