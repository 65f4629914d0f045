"""The scripts of examples/specdec: text, batches, the loss and what it learns from."""

from __future__ import annotations

import gettext
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import MarianConfig, MarianMTModel

from examples.specdec import distill
from examples.specdec.catalogues import CatalogueError, read_catalogue
from examples.specdec.corpus import distinct, is_fit, is_held_out, licences
from examples.specdec.distill import distilled, translate
from examples.specdec.losses import smoothed_cross_entropy
from examples.specdec.pairs import Batch, Pair, batches, make_batch
from examples.specdec.running import Rates, Run, train
from examples.specdec.train import (
    begin_from,
    cut_blocks,
    drafter_loss,
    glance,
    save_drafter,
    sizes_for,
)
from examples.specdec.train_target import target_loss
from examples.specdec.vocabulary import EOS_ID, make_vocabulary
from spec_compile.export.spec_drafter import SpecDrafter
from spec_compile.export.spec_drafter_files import load_spec_drafter


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small matrices of many steps: threads that wait for each other cost more than they bring."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


MESSAGES = {
    "": "Content-Type: text/plain; charset=UTF-8\n",
    "_Open the\nfile": "Die Datei ö_ffnen",
    "menu\x04&Quit now": "Jetzt &beenden",
    "%d file\x00%d files": "%d Datei\x00%d Dateien",
}


def write_catalogue(path: Path, messages: dict[str, str]) -> Path:
    entries = sorted((k.encode(), v.encode()) for k, v in messages.items())
    start, texts, tables = 28 + 16 * len(entries), b"", [b"", b""]
    for side in range(2):
        for entry in entries:
            tables[side] += struct.pack("<2I", len(entry[side]), start + len(texts))
            texts += entry[side] + b"\0"
    header = (0x950412DE, 0, len(entries), 28, 28 + 8 * len(entries), 0, 0)
    path.write_bytes(struct.pack("<7I", *header) + b"".join(tables) + texts)
    return path


def test_catalogues_give_cleaned_pairs(tmp_path: Path) -> None:
    path = write_catalogue(tmp_path / "x.mo", MESSAGES)
    with path.open("rb") as file:
        assert gettext.GNUTranslations(file).pgettext("menu", "&Quit now") == "Jetzt &beenden"
    assert sorted(read_catalogue(path)) == [
        ("%d file", "%d Datei"),
        ("%d files", "%d Dateien"),
        ("Open the file", "Die Datei öffnen"),
        ("Quit now", "Jetzt beenden"),
    ]


@pytest.mark.parametrize("data", [b"", b"no catalogue at all, but long", b"\xde\x12\x04\x95" * 9])
def test_other_files_are_no_catalogues(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.mo"
    path.write_bytes(data)
    with pytest.raises(CatalogueError, match=r"x\.mo"):
        list(read_catalogue(path))


@pytest.mark.parametrize(
    "english, german, fit",
    [
        ("Open the file", "Die Datei öffnen", True),
        ("Open", "Open", False),
        ("%1 / %2 (%3)", "%1 von %2 (%3)", False),
        ("NAME OF TRANSLATORS", "Petra Muster", False),
        ("Yes", "Ja, und zwar sofort und ohne jede weitere Frage", False),
        ("Open a tab", "Einen\tReiter öffnen", False),
        ("word " * 61, "Wort " * 61, False),
    ],
)
def test_only_translations_are_fit(english: str, german: str, fit: bool) -> None:
    assert is_fit(english, german) == fit


def test_texts_that_hardly_differ_come_once_and_on_one_side() -> None:
    pairs = [("Open file", "Datei öffnen")] * 2 + [("open file …", "Öffne Datei"), ("Go", "Los")]
    found = distinct(pairs)
    assert sorted(found) == [("Go", "Los"), ("Open file", "Datei öffnen")]
    assert distinct(pairs[::-1]) == found
    assert is_held_out("Open file") == is_held_out("open file …")


def test_licences_are_those_of_the_copyright_file(tmp_path: Path) -> None:
    folder = tmp_path / "usr/share/doc/x"
    folder.mkdir(parents=True)
    (folder / "copyright").write_text("License: GPL-2+\n text\nLicense: Expat\nLicense: GPL-2+\n")
    assert licences(tmp_path) == ["Expat", "GPL-2+"]


def test_every_text_has_tokens_and_comes_back(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("Open file 12\tDatei 12 öffnen\n" * 4)
    tokenizer = make_vocabulary(tmp_path / "train.tsv", 300)
    for text in ("Open file", " Größe: 100 % →", "日本"):
        encoding = tokenizer.encode(text)
        assert encoding.ids[-1] == EOS_ID
        assert tokenizer.decode(encoding.ids) == text
    assert tokenizer.encode("2026").tokens == ["2", "0", "2", "6", "</s>"]


def test_loss_and_gradients_are_those_of_the_plain_formula() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(1500, 16, requires_grad=True)
    weight = torch.randn(40, 16, requires_grad=True)
    labels = torch.randint(40, (1500,))
    loss = smoothed_cross_entropy(hidden, weight, labels, 0.1)
    plain = functional.cross_entropy(hidden @ weight.T, labels, label_smoothing=0.1)
    assert loss.item() == pytest.approx(plain.item(), rel=5e-3)
    for name in (hidden, weight):
        (found,) = torch.autograd.grad(2 * loss, name, retain_graph=True)
        (wanted,) = torch.autograd.grad(2 * plain, name, retain_graph=True)
        assert (found - wanted).norm() < 0.02 * wanted.norm()


def some_pairs(count: int) -> list[Pair]:
    """Sources of 2 to 6 tokens; the translation is the source, every token one higher."""
    generator = np.random.default_rng(0)
    pairs = []
    for _ in range(count):
        source = generator.integers(3, 27, generator.integers(2, 7)).tolist()
        pairs.append(Pair([*source, EOS_ID], [*(token + 1 for token in source), EOS_ID]))
    return pairs


def test_batches_hold_every_pair_once_in_an_epoch() -> None:
    pairs = some_pairs(60)
    rows: list[tuple[int, ...]] = []
    for batch in batches(pairs, 160, np.random.default_rng(1)):
        assert batch.target.numel() <= 160 and batch.target.shape[1] == 8
        for row, length in zip(batch.target.tolist(), batch.lengths.tolist(), strict=True):
            rows.append(tuple(row[:length]))
        if len(rows) >= len(pairs):
            break
    assert sorted(rows) == sorted(tuple(pair.target) for pair in pairs)


def test_blocks_stand_behind_prefixes_of_every_length() -> None:
    batch = make_batch([Pair([1], [5, 6, 7, 1])] * 400)
    blocks = cut_blocks(batch, 3, torch.Generator().manual_seed(0))
    wanted = {1: [5, 6, 7], 2: [6, 7, 1], 3: [7, 1, -1], 4: [1, -1, -1]}
    lengths = blocks.prefix_lengths.tolist()
    assert set(lengths) == set(wanted)
    for row, length in enumerate(lengths):
        assert blocks.wanted[row].tolist() == wanted[length]
        assert blocks.prefix[row, :length].tolist() == [0, 5, 6, 7][:length]


def test_glancing_shows_a_share_of_the_wrong_tokens() -> None:
    wanted = torch.tensor([[3, 4, 5, 6], [3, 4, -1, -1], [3, 4, 5, 6]]).repeat(50, 1)
    best = torch.tensor([[0, 0, 0, 0], [0, 0, 0, 0], [3, 4, 5, 6]]).repeat(50, 1)
    hints = glance(best, wanted, 0.5, torch.Generator().manual_seed(0))
    assert (hints >= 0).sum(dim=1).tolist() == [2, 1, 0] * 50
    assert torch.equal(hints[hints >= 0], wanted[hints >= 0])
    assert {tuple(row) for row in (hints[::3] >= 0).tolist()} >= {
        (True, True, False, False),
        (False, False, True, True),
    }


@pytest.fixture(scope="module")
def target() -> MarianMTModel:
    torch.manual_seed(0)
    config = MarianConfig(
        vocab_size=32,
        d_model=32,
        encoder_layers=1,
        decoder_layers=3,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        activation_function="relu",
        dropout=0.0,
        scale_embedding=True,
        max_position_embeddings=320,
        init_std=0.1,
        pad_token_id=0,
        eos_token_id=1,
        forced_eos_token_id=None,
        decoder_start_token_id=0,
    )
    config._attn_implementation = "eager"
    return MarianMTModel(config)


def stream(seed: int) -> list[Batch]:
    source = batches(some_pairs(200), 400, np.random.default_rng(seed))
    return [next(source) for _ in range(40)]


def test_target_learns_and_a_resumed_run_is_where_it_was(
    target: MarianMTModel, tmp_path: Path
) -> None:
    run = Run(target, Rates(warmup_steps=5))

    def loss_of(batch: Batch) -> torch.Tensor:
        return target_loss(target, batch)

    before = loss_of(stream(5)[0]).item()
    train(run, iter(stream(0)), loss_of, tmp_path, minutes=5, cool=0)
    assert loss_of(stream(5)[0]).item() < 0.8 * before

    copy = MarianMTModel(target.config)
    other = Run(copy, Rates(warmup_steps=5))
    other.resume(tmp_path)
    assert (other.steps, other.tokens) == (run.steps, run.tokens) == (40, run.tokens)
    for name, weight in run.averaged().items():
        assert torch.equal(weight, other.averaged()[name]), name
    train(run, iter(stream(1)[:2]), loss_of, tmp_path, minutes=5, cool=0)
    train(
        other,
        iter(stream(1)[:2]),
        lambda batch: target_loss(copy, batch),
        tmp_path,
        minutes=5,
        cool=0,
    )
    for name, weight in run.averaged().items():
        torch.testing.assert_close(other.averaged()[name], weight)


def test_drafter_begins_as_its_target_and_every_weight_learns(target: MarianMTModel) -> None:
    drafter = SpecDrafter(sizes_for(target))
    begin_from(target, drafter)
    batch = stream(2)[0]
    target.train(False)
    wanted = target.model.encoder(batch.source, attention_mask=batch.source_mask)
    real = batch.source_mask.bool()
    found = drafter.encode(batch.source, batch.source_lengths)
    torch.testing.assert_close(found[real], wanted.last_hidden_state[real])
    with torch.autocast("cpu", torch.bfloat16):
        loss = drafter_loss(drafter, batch, 0.5, torch.Generator().manual_seed(0))
    loss.backward()  # type: ignore[no-untyped-call]
    for name, weight in drafter.named_parameters():
        # A key's bias shifts all scores alike, so its gradient is rounding noise.
        if "k_proj.bias" not in name:
            assert weight.grad is not None and weight.grad.abs().max() > 0, name


def test_drafter_learns_from_the_target_s_text(target: MarianMTModel, tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("Open file\tDatei öffnen\n")
    tokenizer = make_vocabulary(tmp_path / "train.tsv", 300)
    torch.manual_seed(0)
    drafter = SpecDrafter(sizes_for(target))
    begin_from(target, drafter)
    run, generator = Run(drafter, Rates(warmup_steps=5)), torch.Generator().manual_seed(0)

    def loss_of(batch: Batch) -> torch.Tensor:
        return drafter_loss(drafter, batch, 0.3, generator)

    before = sum(loss_of(batch).item() for batch in stream(9)[:5])
    train(run, iter(stream(3)), loss_of, tmp_path, minutes=5, cool=0)
    assert sum(loss_of(batch).item() for batch in stream(9)[:5]) < 0.8 * before
    save_drafter(run, drafter, tokenizer, tmp_path / "drafter")
    assert load_spec_drafter(tmp_path / "drafter").sizes == drafter.sizes


def test_translations_are_the_target_s_greedy_ones(
    target: MarianMTModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distill, "LONGEST_ANSWER", 8)
    target.train(False)
    sources = [pair.source for pair in some_pairs(5)]
    for source, answer in zip(sources, translate(target, sources), strict=True):
        tokens = [0]
        for _ in answer:
            logits = target(
                input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([tokens])
            ).logits
            tokens.append(int(logits[0, -1].argmax()))
        assert tokens[1:] == answer


def test_distilled_pairs_keep_their_text(
    target: MarianMTModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.tsv").write_text("ab\tcd\n")
    tokenizer = make_vocabulary(tmp_path / "train.tsv", 300)
    big = MarianMTModel(MarianConfig(**{**target.config.to_diff_dict(), "vocab_size": 300}))
    monkeypatch.setattr(distill, "LONGEST_ANSWER", 8)
    texts = ["ab ab", "b"]
    for english, german in distilled(big.train(False), tokenizer, texts):
        assert english in texts and german
