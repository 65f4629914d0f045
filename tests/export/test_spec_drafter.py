"""The Spec-Drafter: equal to Marian's layers, blind to padding, exportable, refused if unsound."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.export import Dim
from transformers import MarianConfig, MarianMTModel

from spec_compile.errors import CheckpointError
from spec_compile.export.spec_drafter import DrafterSizes, SpecDrafter
from spec_compile.export.spec_drafter_files import (
    is_spec_drafter,
    load_spec_drafter,
    save_spec_drafter,
)

SIZES = DrafterSizes(
    vocab_size=29,
    hidden_size=16,
    num_heads=2,
    encoder_layers=2,
    decoder_layers=2,
    encoder_ffn_size=24,
    decoder_ffn_size=20,
    max_speculative_tokens=4,
    max_length=32,
)
SOURCE = torch.tensor([[5, 6, 7, 8, 1], [9, 10, 1, 0, 0]])
SOURCE_LENGTHS = torch.tensor([5, 3])
PREFIX = torch.tensor([[0, 11, 12], [0, 3, 3]])
PREFIX_LENGTHS = torch.tensor([3, 1])
TOKENIZER = "0" * 64


def make_drafter(seed: int = 0) -> SpecDrafter:
    torch.manual_seed(seed)
    drafter = SpecDrafter(SIZES)
    for weight in drafter.parameters():
        if weight.ndim == 2:
            nn.init.normal_(weight, std=0.3)
    return drafter.train(False).requires_grad_(False)


def make_marian() -> MarianMTModel:
    torch.manual_seed(1)
    config = MarianConfig(
        vocab_size=SIZES.vocab_size,
        d_model=SIZES.hidden_size,
        encoder_layers=SIZES.encoder_layers,
        decoder_layers=SIZES.decoder_layers,
        encoder_attention_heads=SIZES.num_heads,
        decoder_attention_heads=SIZES.num_heads,
        encoder_ffn_dim=SIZES.encoder_ffn_size,
        decoder_ffn_dim=SIZES.decoder_ffn_size,
        activation_function="relu",
        scale_embedding=True,
        max_position_embeddings=SIZES.max_length,
        init_std=0.3,
        pad_token_id=0,
        eos_token_id=1,
        forced_eos_token_id=None,
        decoder_start_token_id=0,
    )
    model = MarianMTModel(config)
    model.train(False)
    return model


def test_encoder_is_marian_s_with_the_weights_of_a_target() -> None:
    marian, drafter = make_marian(), make_drafter()
    encoder = {k: w for k, w in marian.model.encoder.state_dict().items() if "layers" in k}
    drafter.encoder.load_state_dict(encoder)
    drafter.shared.load_state_dict(marian.model.shared.state_dict())

    mask = (torch.arange(5) < SOURCE_LENGTHS[:, None]).long()
    wanted = marian.model.encoder(SOURCE, attention_mask=mask).last_hidden_state
    found = drafter.encode(SOURCE, SOURCE_LENGTHS)

    for row, length in enumerate(SOURCE_LENGTHS.tolist()):
        torch.testing.assert_close(found[row, :length], wanted[row, :length])


def test_padding_of_source_and_prefix_changes_nothing() -> None:
    drafter = make_drafter()
    together = drafter(SOURCE, SOURCE_LENGTHS, PREFIX, PREFIX_LENGTHS)
    for row in range(2):
        source = SOURCE[row : row + 1, : SOURCE_LENGTHS[row]]
        prefix = PREFIX[row : row + 1, : PREFIX_LENGTHS[row]]
        part = slice(row, row + 1)
        alone = drafter(source, SOURCE_LENGTHS[part], prefix, PREFIX_LENGTHS[part])
        torch.testing.assert_close(together[part], alone)


@pytest.mark.parametrize("place", [1, 2])
def test_every_position_sees_the_whole_prefix(place: int) -> None:
    drafter, other = make_drafter(), PREFIX.clone()
    other[0, place] += 5
    before = drafter(SOURCE, SOURCE_LENGTHS, PREFIX, PREFIX_LENGTHS)
    after = drafter(SOURCE, SOURCE_LENGTHS, other, PREFIX_LENGTHS)
    assert ((before - after)[0].abs().amax(dim=-1) > 1e-4).all()
    torch.testing.assert_close(before[1], after[1])


def test_block_positions_see_each_other_in_both_directions() -> None:
    drafter = make_drafter()
    memory = drafter.encode(SOURCE, SOURCE_LENGTHS)

    def logits(hints: list[int]) -> Tensor:
        shown = torch.tensor([hints, hints])
        return drafter.propose(memory, SOURCE_LENGTHS, PREFIX, PREFIX_LENGTHS, hints=shown)

    masked = logits([-1, -1, -1, -1])
    torch.testing.assert_close(
        masked, drafter.propose(memory, SOURCE_LENGTHS, PREFIX, PREFIX_LENGTHS)
    )
    for hints in ([-1, -1, -1, 7], [7, -1, -1, -1]):
        changed = (masked - logits(hints)).abs().amax(dim=(0, 2))
        assert (changed > 1e-4).all()


def test_positions_have_queries_of_their_own() -> None:
    drafter = make_drafter()
    logits = drafter(SOURCE, SOURCE_LENGTHS, PREFIX, PREFIX_LENGTHS)
    with torch.no_grad():
        drafter.mask_queries.weight[2, :8] += 1
    changed = drafter(SOURCE, SOURCE_LENGTHS, PREFIX, PREFIX_LENGTHS)
    assert (logits - changed)[0, 2].abs().max() > 0.1
    fewer = drafter.propose(
        drafter.encode(SOURCE, SOURCE_LENGTHS), SOURCE_LENGTHS, PREFIX, PREFIX_LENGTHS, 2
    )
    assert fewer.shape == (2, 2, SIZES.vocab_size)


def test_exports_with_any_number_of_rows_and_lengths() -> None:
    drafter = make_drafter()
    rows, source, prefix = Dim("rows"), Dim("source"), Dim("prefix")
    shapes = ({0: rows, 1: source}, {0: rows}, {0: rows, 1: prefix}, {0: rows})
    example = (SOURCE, SOURCE_LENGTHS, PREFIX, PREFIX_LENGTHS)
    graph = torch.export.export(drafter, example, dynamic_shapes=shapes, strict=False).module()
    wide = torch.nn.functional.pad(PREFIX, (0, 4), value=2)
    others = [
        example,
        (SOURCE[:1], SOURCE_LENGTHS[:1], wide[:1], torch.tensor([6])),
        (
            SOURCE.repeat(3, 2),
            SOURCE_LENGTHS.repeat(3),
            wide.repeat(3, 1),
            PREFIX_LENGTHS.repeat(3),
        ),
    ]
    for inputs in others:
        torch.testing.assert_close(graph(*inputs), drafter(*inputs))


def test_a_saved_drafter_is_the_same_after_loading(tmp_path: Path) -> None:
    drafter = make_drafter()
    save_spec_drafter(tmp_path / "drafter", drafter, TOKENIZER, torch.float32)
    loaded = load_spec_drafter(tmp_path / "drafter", tokenizer_sha256=TOKENIZER)
    assert is_spec_drafter(tmp_path / "drafter") and loaded.sizes == SIZES
    inputs = (SOURCE, SOURCE_LENGTHS, PREFIX, PREFIX_LENGTHS)
    torch.testing.assert_close(loaded(*inputs), drafter(*inputs), rtol=0, atol=0)


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    save_spec_drafter(tmp_path, make_drafter(), TOKENIZER)
    with pytest.raises(CheckpointError, match="another tokenizer"):
        load_spec_drafter(tmp_path, tokenizer_sha256="1" * 64)


def test_a_folder_of_something_else_is_none(tmp_path: Path) -> None:
    assert not is_spec_drafter(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    assert not is_spec_drafter(tmp_path)
    with pytest.raises(CheckpointError, match="holds no object"):
        load_spec_drafter(tmp_path)


@pytest.mark.parametrize(
    "field, value, message",
    [
        ("model_type", "marian", "model_type is not"),
        ("target_tokenizer_sha256", 7, "no sound target_tokenizer_sha256"),
        ("hidden_size", 15, "hidden_size=15 must be even"),
        ("num_heads", 3, "multiple of num_heads=3"),
        ("decoder_layers", 0, "decoder_layers is 0"),
        ("encoder_layers", 10**6, "encoder_layers is 1000000"),
        ("max_length", True, "max_length is True"),
        ("max_length", 4, "must be smaller than max_length=4"),
        ("vocab_size", "29", "vocab_size is '29'"),
        ("vocab_size", 30, r"shared.weight is \[29, 16\], config.json says \[30, 16\]"),
        ("dropout", 1, "dropout is no field of a Spec-Drafter"),
    ],
)
def test_unsound_configurations_are_refused_by_name(
    tmp_path: Path, field: str, value: object, message: str
) -> None:
    save_spec_drafter(tmp_path, make_drafter(), TOKENIZER)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    with pytest.raises(CheckpointError, match=message):
        load_spec_drafter(tmp_path)


def test_damaged_weights_are_refused_by_name(tmp_path: Path) -> None:
    save_spec_drafter(tmp_path, make_drafter(), TOKENIZER)
    path = tmp_path / "model.safetensors"
    sound = load_file(path)
    save_file(sound | {"mask_queries.weight": sound["mask_queries.weight"] * torch.inf}, path)
    with pytest.raises(CheckpointError, match=r"mask_queries\.weight holds NaN or infinity"):
        load_spec_drafter(tmp_path)
    save_file({k: w for k, w in sound.items() if k != "mask_queries.weight"}, path)
    with pytest.raises(CheckpointError, match=r"mask_queries\.weight is missing"):
        load_spec_drafter(tmp_path)
    path.write_bytes(b"no weights")
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load_spec_drafter(tmp_path)


def test_sizes_say_how_many_tokens_may_be_proposed() -> None:
    one = SpecDrafter(replace(SIZES, max_speculative_tokens=1, decoder_layers=1))
    assert one(SOURCE, SOURCE_LENGTHS, PREFIX, PREFIX_LENGTHS).shape == (2, 1, SIZES.vocab_size)
