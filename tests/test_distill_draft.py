"""Making a draft: the teacher is the target, what is stored comes back, what is saved compiles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM

from examples.distill_draft import model, prompts, subjects
from examples.distill_draft.batches import (
    Batch,
    frequent_tokens,
    inverse_of,
    make_batch,
    shuffled,
    token_frequency,
)
from examples.distill_draft.card import card
from examples.distill_draft.evaluate import summary
from examples.distill_draft.generate import Answer, Writers
from examples.distill_draft.label import labelled
from examples.distill_draft.measure import measure
from examples.distill_draft.model import Draft, load_draft
from examples.distill_draft.start import install
from examples.distill_draft.store import Text, read_shards, shard_names, write_shard
from examples.distill_draft.teacher import LAW_SIZE, Teacher, top_law
from examples.distill_draft.train import Data, loss_of, open_run
from spec_compile.export.checkpoint import load_model, open_checkpoint
from spec_compile.export.compact_draft import load_compact_draft
from spec_compile.export.tokenizer_files import read_tokenizer
from spec_compile.runtime.stats import GenerationStats, Round
from tests.helpers.captured import random_tokens
from tests.helpers.tiny_models import VOCAB_SIZE, save_tiny_model

IDS = torch.arange(0, VOCAB_SIZE, 2)
SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher") / "target"
    return save_tiny_model(folder, tokenizer=True, head_dim=8, tie_word_embeddings=True)


@pytest.fixture(scope="module")
def embeddings(target: Path) -> Tensor:
    return load_file(target / "model.safetensors")["model.embed_tokens.weight"]


def text_of(length: int, start: int, *, seed: int = 0, is_held_out: bool = False) -> Text:
    """A text with random tokens and laws."""
    random = np.random.default_rng(seed)
    count = length - start
    laws = np.sort(random.dirichlet(np.ones(LAW_SIZE), count))[:, ::-1]
    return Text(
        number=seed,
        kind="chat",
        temperature=0.0,
        is_held_out=is_held_out,
        start=start,
        tokens=random.integers(0, VOCAB_SIZE, length).astype(np.uint16),
        law_ids=np.stack([random.permutation(VOCAB_SIZE) for _ in range(count)]).astype(np.uint16),
        law_log_probs=np.log(laws).astype(np.float16),
    )


def test_the_teacher_computes_what_transformers_does_row_by_row(target: Path) -> None:
    teacher = Teacher(target, 3, 16, torch.float32)
    reference = AutoModelForCausalLM.from_pretrained(target)
    tokens = random_tokens(2, 9)
    rows, lengths = torch.tensor([2, 0]), torch.tensor([6, 3])
    teacher.forward(tokens[:, :6], rows, torch.zeros(2, dtype=torch.int64))
    found = teacher.logits(teacher.forward(tokens[:, 6:], rows, lengths))
    for row, length in enumerate(lengths.tolist()):
        read = torch.cat([tokens[row, :length], tokens[row, 6:]])
        with torch.no_grad():
            expected = reference(input_ids=read[None]).logits[0, length:]
        torch.testing.assert_close(found[row], expected, rtol=0, atol=1e-4)


def test_top_laws_are_the_likeliest_tokens_in_order() -> None:
    logits = torch.randn(2, 500, generator=torch.Generator().manual_seed(0))
    ids, log_probs = top_law(logits)
    probs = logits.softmax(dim=-1)
    torch.testing.assert_close(log_probs.exp(), probs.gather(1, ids))
    assert (log_probs.diff(dim=-1) <= 0).all()
    assert torch.equal(ids[:, 0], logits.argmax(dim=-1))


def test_answers_written_together_are_the_target_s_greedy_ones(target: Path) -> None:
    reference = AutoModelForCausalLM.from_pretrained(target)
    begun = [[5, 6], [7], [8, 9, 10], [11, 3]]
    prompt = prompts.Prompt("chat", "", "")
    waiting = (Answer(i, prompt, 0.0, list(b), len(b)) for i, b in enumerate(begun))
    teacher = Teacher(target, 3, 200, torch.float32)
    texts = {a.number: a.text() for a in Writers(teacher, waiting, eos=0, seed=0).run()}
    assert sorted(texts) == [0, 1, 2, 3]
    for number, start in enumerate(begun):
        text = texts[number]
        with torch.no_grad():
            logits = reference(
                input_ids=torch.from_numpy(text.tokens.astype(np.int64))[None]
            ).logits[0]
        written = logits[len(start) - 1 : -1]
        assert text.tokens[len(start) :].tolist() == written.argmax(dim=-1).tolist()
        log_probs = written.log_softmax(dim=-1).gather(1, torch.tensor(text.law_ids.astype(int)))
        np.testing.assert_allclose(text.law_log_probs, log_probs, rtol=0, atol=0.02)


def test_what_it_reads_has_the_target_s_laws(target: Path) -> None:
    tokens = random_tokens(24, seed=3).tolist()
    text = labelled(Teacher(target, 1, 24, torch.float32), 7, "name", tokens)
    assert (text.number, text.kind, text.start) == (7, "read", 16)
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(target)(torch.tensor([tokens])).logits[0]
    likeliest = logits[15:-1].argmax(dim=-1)
    assert text.law_ids[:, 0].tolist() == likeliest.tolist()


def test_shards_come_back_as_they_were(tmp_path: Path) -> None:
    texts = [text_of(9, 4, seed=1), text_of(5, 1, seed=2, is_held_out=True)]
    write_shard(tmp_path, "chat-1", texts)
    assert shard_names(tmp_path) == ["chat-1"]
    for one, other in zip(texts, read_shards(tmp_path, ["chat-1"]), strict=True):
        assert (one.number, one.kind, one.is_held_out, one.start) == (
            other.number,
            other.kind,
            other.is_held_out,
            other.start,
        )
        for name in ("tokens", "law_ids", "law_log_probs"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_a_label_stands_behind_the_token_in_front_of_it() -> None:
    texts = [text_of(6, 4, seed=1), text_of(9, 8, seed=2)]
    batch = make_batch(texts, inverse_of(IDS, VOCAB_SIZE))
    assert batch.tokens.shape == (2, 9)
    assert list(zip(batch.rows.tolist(), batch.places.tolist(), strict=True)) == [
        (0, 3),
        (0, 4),
        (1, 7),
    ]
    known = batch.law_index < len(IDS)
    assert torch.equal(IDS[batch.law_index[known]], batch.law_ids[known])
    assert (batch.law_ids[~known] % 2 == 1).all()


def test_a_pass_over_texts_leaves_none_out() -> None:
    texts = [text_of(4 + n % 5, 2, seed=n) for n in range(30)]
    groups = list(shuffled(texts, 10, seed=0))
    assert sorted(text.number for group in groups for text in group) == list(range(30))
    assert len(groups) > 3


def test_frequent_tokens_are_those_of_most_probability() -> None:
    texts = [text_of(30, 1, seed=5)]
    frequency = token_frequency(texts, VOCAB_SIZE)
    mass = np.zeros(VOCAB_SIZE)
    np.add.at(mass, texts[0].law_ids, np.exp(texts[0].law_log_probs.astype(np.float32)))
    assert float(frequency.sum()) == pytest.approx(1.0, abs=1e-5)
    assert int(frequency.argmax()) == int(mass.argmax())
    ids = frequent_tokens(frequency, 10, [63]).tolist()
    assert ids == sorted(ids)
    assert {63, int(mass.argmax())} <= set(ids)
    assert len(ids) == 10


def test_the_first_weights_copy_what_stood_behind_the_same_tokens() -> None:
    """Before any training: in a sequence of distinct tokens said twice, the second is foreseen."""
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(1000, 200, generator=generator) + 2.0
    draft = Draft(embeddings, torch.arange(1000), model.SIZES)
    install(draft, torch.full((1000,), 1e-3))
    once = torch.randperm(1000, generator=generator)[:40]
    tokens, places = torch.cat([once, once])[None], torch.arange(45, 79)
    with torch.no_grad():
        logits = draft(tokens, torch.zeros_like(places), places)
    foreseen = (logits.argmax(dim=-1) == tokens[0, 46:80]).float().mean()
    assert float(foreseen) > 0.9


def test_the_loss_is_the_cross_entropy_and_the_share_rejected() -> None:
    law = torch.tensor([[0.5, 0.3, 0.2]])
    index = torch.tensor([[1, 2, 0]])  # the draft has tokens 0 and 1 only
    zero = torch.zeros(1, dtype=torch.int64)
    batch = Batch(zero[None], zero, zero, law, index, index)
    logits = torch.tensor([[1.0, 2.0]])
    mine = logits.softmax(dim=-1)[0]
    cross_entropy = -(0.5 * mine[1].log() + 0.2 * mine[0].log())
    rejected = 1 - (0.5 + min(0.2, float(mine[0])))
    torch.testing.assert_close(loss_of(logits, batch), cross_entropy + rejected)


def test_a_saved_draft_is_a_compact_one_with_the_same_logits(
    target: Path, embeddings: Tensor, tmp_path: Path
) -> None:
    draft = Draft(embeddings, IDS, SIZES)
    draft.save(tmp_path / "draft", Tokenizer.from_file(str(target / "tokenizer.json")))
    checkpoint, opened = open_checkpoint(str(target)), open_checkpoint(str(tmp_path / "draft"))
    joined = load_compact_draft(
        tmp_path / "draft",
        opened.config,
        load_model(checkpoint, torch.float32),
        read_tokenizer(checkpoint).ids(),
        torch.float32,
    )
    tokens = random_tokens(1, 7)
    rows, places = torch.zeros(7, dtype=torch.int64), torch.arange(7)
    again = load_draft(tmp_path / "draft", embeddings, SIZES)
    with torch.no_grad():
        logits = joined.model(input_ids=tokens).logits[0][:, joined.token_ids]
        torch.testing.assert_close(logits, again(tokens, rows, places), rtol=0, atol=1e-4)
        torch.testing.assert_close(logits, draft(tokens, rows, places), rtol=0, atol=0.02)


def test_training_learns_and_goes_on_where_it_stopped(embeddings: Tensor, tmp_path: Path) -> None:
    texts = [text_of(20, 2, seed=n, is_held_out=n == 0) for n in range(3)]
    write_shard(tmp_path / "data", "chat-1", texts)
    data = Data(tmp_path / "data")
    assert (len(data.train), len(data.held_out)) == (2, 1)
    batch = make_batch(data.train, inverse_of(torch.arange(VOCAB_SIZE), VOCAB_SIZE))
    run = open_run(tmp_path, embeddings, data, eos=0, sizes=SIZES, num_tokens=VOCAB_SIZE)
    losses = [run.step(batch, 1.0) for _ in range(20)]
    assert losses[-1] < losses[0] - 0.1
    run.save(tmp_path)
    again = open_run(tmp_path, embeddings, data, eos=0, sizes=SIZES, num_tokens=VOCAB_SIZE)
    assert again.steps == 20
    assert again.step(batch, 1.0) == run.step(batch, 1.0)
    for name, weight in run.draft.state_dict().items():
        assert torch.equal(weight, again.draft.state_dict()[name]), name


def test_measured_against_itself_everything_is_accepted(embeddings: Tensor) -> None:
    text = text_of(12, 3, seed=1)
    draft = Draft(embeddings, torch.arange(VOCAB_SIZE), SIZES)
    tokens = torch.from_numpy(text.tokens.astype(np.int64))[None]
    places = torch.arange(2, 11)
    with torch.no_grad():
        ids, log_probs = top_law(draft(tokens, torch.zeros_like(places), places))
    own = Text(
        1, "chat", 0.0, True, 3, text.tokens, ids.numpy().astype(np.uint16), log_probs.numpy()
    )
    figures = measure(draft, [own])
    assert figures["chat"] == figures["all"]
    assert figures["all"]["labels"] == 9
    for name in ("acceptance", "agreement", "covered", "agreement_at_0"):
        assert figures["all"][name] == pytest.approx(1.0, abs=1e-3)
    assert measure(draft, [text])["all"]["acceptance"] < 0.9


def test_prompts_are_the_same_every_time_and_held_out_by_subject() -> None:
    made = [prompts.make_prompt(n) for n in (1, 3, 7, 3)]
    assert made[1] == made[3]
    topics = subjects.split(subjects.TOPICS)
    assert len(set(topics)) == len(topics) > 200
    share = sum(map(prompts.held_out, topics)) / len(topics)
    assert 0.02 < share < 0.15


def test_positions_are_counted_among_the_rounds_that_reach_them() -> None:
    kept = (2, 0, 1, 2, 1)
    rounds = [Round(2, count, count + 1, 1.0, False) for count in kept]
    rounds.append(Round(1, 1, 1, 1.0, False))  # cut behind its first draft
    figures = summary(GenerationStats(2, tuple(rounds), 6.0))
    assert figures["kept_given_those_before"] == [round(5 / 6, 4), round(2 / 4, 4)]
    assert figures["kept_of_all"] == [round(5 / 6, 4), round(2 / 5, 4)]


def test_the_card_says_what_was_measured() -> None:
    one = {"labels": 70, "acceptance": 0.5, "agreement": 0.6}
    held = one | {"acceptance_at_1": 0.41, "agreement_at_0": 0.73}
    rounds = {"kept_given_those_before": [0.6, 0.55], "tokens_per_round": 2.34}
    times = ("draft_ms_median", "verify_ms_median", "draft_ms_minimum", "verify_ms_minimum")
    text = card(
        {"labels": 123456, "steps": 789, "loss": 4.321},
        {
            "held_out": dict.fromkeys(("all", "chat", "code"), held),
            "rounds": {"chat at temperature 0": rounds},
            "prompts": 3,
            "cost": {name: 1.25 + index for index, name in enumerate(times)},
        },
    )
    assert text.startswith("---\nlicense: apache-2.0\n")
    for said in ("123,456", "789 steps", "4.32", "| chat | 0.50 | 0.60 | 0.41 | 0.73 |"):
        assert said in text
    assert "| chat at temperature 0 | 0.60 | 0.55 | 2.34 |" in text
    assert "draft of a round 1.25 ms, the verify call 2.25 ms" in text
