"""The rejection kernels in Triton's interpreter: the reference's tokens, up to judged ties."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spec_compile.kernels import ops, reference
from spec_compile.kernels.schedule import Schedule
from spec_compile.sampling import Sampling
from tests.helpers.kernel_rounds import Round, objection, random_round

pytestmark = pytest.mark.triton


def by_kernels(asked: Round, max_chunk_blocks: int = 16) -> tuple[Tensor, Tensor]:
    from spec_compile.kernels import launch

    assert ops.runs_kernels(asked.logits)
    schedule = Schedule.of(asked.logits.shape[-1], max_chunk_blocks)
    return launch.rejection(*asked.arguments(), schedule)


def by_reference(asked: Round) -> tuple[Tensor, Tensor]:
    logits, tokens, probs, temperature, uniforms = asked.arguments()
    sampling = reference.temperature_only(temperature)
    return reference.accept_rejection(logits, tokens, probs, sampling, uniforms)


def count_ties(asked: Round, max_chunk_blocks: int = 16) -> int:
    """Rows that differ from the reference, after the judge has found nothing against either."""
    ours, theirs = by_kernels(asked, max_chunk_blocks), by_reference(asked)
    ties = 0
    for row in range(len(asked.uniforms)):
        answers = [(t[row].tolist(), int(n[row])) for t, n in (ours, theirs)]
        for tokens, emitted in answers:
            assert objection(asked, row, tokens, emitted) is None
        ties += answers[0] != answers[1]
    return ties


@pytest.mark.parametrize(
    "vocab_size, num_drafts, dtype",
    [
        (1, 2, torch.float32),
        (5, 4, torch.float32),
        (255, 1, torch.float16),
        (256, 3, torch.bfloat16),
        (257, 0, torch.float32),
        (1000, 2, torch.float16),
        (2048, 3, torch.float32),
        (4100, 1, torch.bfloat16),
    ],
)
def test_shapes_and_dtypes(vocab_size: int, num_drafts: int, dtype: torch.dtype) -> None:
    asked = random_round(4, num_drafts, vocab_size, dtype, seed=vocab_size)
    assert count_ties(asked) == 0


def test_a_row_of_several_chunks_that_ends_inside_a_block() -> None:
    assert count_ties(random_round(4, 3, 3 * 512 + 77, seed=1), max_chunk_blocks=2) == 0


def test_many_rounds_differ_in_ties_at_most() -> None:
    asked = random_round(40, 2, 300, seed=2)
    assert set(by_reference(asked)[1].tolist()) == {1, 2, 3}
    assert count_ties(asked) <= 1


@pytest.mark.parametrize("forbidden", [0.3, 0.95])
def test_a_forbidden_token_is_never_emitted(forbidden: float) -> None:
    asked = random_round(9, 2, 700, seed=3, forbidden=forbidden)
    assert count_ties(asked) == 0
    tokens, emitted = by_kernels(asked)
    for row, count in enumerate(emitted.tolist()):
        for position in range(count):
            assert asked.logits[row, position, tokens[row, position]] > -torch.inf


def dyadic_round(batch: int, num_drafts: int, vocab_size: int, seed: int) -> Round:
    """Laws and uniforms that are multiples of powers of two: no sum of theirs is ever rounded."""
    random = torch.Generator().manual_seed(seed)

    def alive(count: int) -> Tensor:
        scores = torch.rand((batch, num_drafts + 1, vocab_size), generator=random)
        return torch.zeros_like(scores).scatter(-1, scores.topk(count, dim=-1).indices, 1.0)

    draft_probs = alive(256)[:, :num_drafts] / 256
    drawn = torch.multinomial(draft_probs.reshape(-1, vocab_size), 1, generator=random)
    uniforms = torch.randint(2**10, (batch, num_drafts + 1), generator=random) / 2**10
    # 0.5 / 256 = 1 / 512: not below the target's mass, so the draft token goes.
    uniforms[:4] = 0.5
    return Round(
        logits=alive(512).log(),
        draft_tokens=drawn.reshape(batch, num_drafts),
        draft_probs=draft_probs,
        temperature=torch.full((batch,), 0.5),
        uniforms=uniforms,
    )


def test_equal_bit_for_bit_where_sums_are_exact() -> None:
    asked = dyadic_round(20, 2, 600, seed=4)
    ours, theirs = by_kernels(asked, max_chunk_blocks=2), by_reference(asked)
    assert set(theirs[1][:4].tolist()) == {1} and set(theirs[1].tolist()) == {1, 2, 3}
    assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])


def test_equal_laws_accept_everything() -> None:
    asked = random_round(4, 3, 600, seed=5, closeness=0.0)
    one = torch.ones(4)
    laws = torch.softmax(asked.logits[:, :3], dim=-1)
    asked = asked.but(temperature=one, draft_probs=laws, uniforms=asked.uniforms * 0.99)
    assert by_kernels(asked)[1].tolist() == [4] * 4
    assert count_ties(asked) == 0


def test_one_hot_laws() -> None:
    """Greedy rows against one-hot drafts: right, right then wrong, and wrong from the start."""
    asked = random_round(3, 2, 400, seed=6)
    best = asked.logits[:, :2].argmax(dim=-1)
    best[1, 1] = (best[1, 1] + 1) % 400
    best[2, 0] = (best[2, 0] + 1) % 400
    one_hot = torch.nn.functional.one_hot(best, 400).float()
    asked = asked.but(temperature=torch.zeros(3), draft_tokens=best, draft_probs=one_hot)
    assert by_kernels(asked)[1].tolist() == [3, 2, 1]
    assert count_ties(asked) == 0


def test_a_sampled_row_against_a_one_hot_draft() -> None:
    """The residual lacks the drafted token, so it never comes back as the recovered one."""
    asked = random_round(6, 1, 300, seed=7)
    worst = asked.logits[:, :1].argmin(dim=-1)
    one_hot = torch.nn.functional.one_hot(worst, 300).float()
    asked = asked.but(temperature=torch.ones(6), draft_tokens=worst, draft_probs=one_hot)
    tokens, emitted = by_kernels(asked)
    assert emitted.tolist() == [1] * 6
    assert (tokens[:, 0] != worst[:, 0]).all()
    assert count_ties(asked) == 0


def test_uniforms_at_both_ends() -> None:
    asked = random_round(4, 2, 520, seed=8, forbidden=0.5)
    for value in (0.0, 1.0 - 2.0**-24):
        assert count_ties(asked.but(uniforms=torch.full_like(asked.uniforms, value))) == 0


def test_rows_that_are_no_numbers_emit_nothing_and_disturb_nobody() -> None:
    asked = random_round(5, 1, 600, seed=9)
    logits, laws = asked.logits.clone(), asked.draft_probs.clone()
    logits[0, 1, 599], logits[1, 0, 3] = torch.nan, torch.inf
    laws[2, 0, asked.draft_tokens[2, 0]] = torch.nan
    tokens, emitted = by_kernels(asked.but(logits=logits, draft_probs=laws))
    whole = by_kernels(asked)
    assert emitted[:3].tolist() == [0, 0, 0]
    assert torch.equal(emitted[3:], whole[1][3:]) and torch.equal(tokens[3:], whole[0][3:])
    assert ((tokens >= -1) & (tokens < 600)).all()
    assert by_reference(asked.but(logits=logits, draft_probs=laws))[1].tolist() == emitted.tolist()


def test_a_row_without_any_mass_gives_some_token() -> None:
    asked = random_round(2, 1, 300, seed=10)
    logits = asked.logits.clone()
    logits[0] = -torch.inf
    tokens, emitted = by_kernels(asked.but(logits=logits))
    assert emitted[0] == 1 and 0 <= tokens[0, 0] < 300
    assert torch.equal(tokens[1], by_kernels(asked)[0][1])


def test_a_draft_token_outside_the_vocabulary_is_rejected() -> None:
    asked = random_round(2, 1, 300, seed=11)
    strange = torch.tensor([[300], [-1]])
    tokens, emitted = by_kernels(asked.but(draft_tokens=strange))
    assert emitted.tolist() == [1, 1]
    assert ((tokens[:, 0] >= 0) & (tokens[:, 0] < 300)).all()


def test_inputs_need_not_be_contiguous() -> None:
    asked = random_round(3, 2, 300, seed=12)
    turned = asked.but(
        logits=asked.logits.transpose(1, 2).contiguous().transpose(1, 2),
        draft_tokens=asked.draft_tokens.T.contiguous().T,
        uniforms=asked.uniforms.T.contiguous().T,
    )
    assert not turned.logits.is_contiguous()
    ours, theirs = by_kernels(turned), by_kernels(asked)
    assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])


def test_the_operator_is_the_kernels() -> None:
    asked = random_round(2, 1, 300, seed=13)
    ours, theirs = ops.accept_rejection(*asked.arguments()), by_kernels(asked)
    assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])


@pytest.mark.parametrize("option", ["top_k", "top_p", "min_p"])
def test_filters_take_the_reference_path(option: str) -> None:
    asked = random_round(4, 2, 300, seed=14)
    values = {"top_k": torch.tensor([0, 5, 0, 0]), "top_p": torch.tensor([1, 0.5, 1, 1])}
    values |= {"min_p": torch.tensor([0.0, 0.3, 0, 0])}
    sampling: Sampling = reference.temperature_only(asked.temperature)
    sampling = sampling._replace(**{option: values[option]})
    logits, tokens, probs, _, uniforms = asked.arguments()
    expected = reference.accept_rejection(logits, tokens, probs, sampling, uniforms)
    found = ops.accept(logits, tokens, probs, sampling, uniforms)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
