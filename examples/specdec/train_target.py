"""Train the target, a Marian model, or go on with it.

    python -m examples.specdec.train_target corpus vocabulary -o target --minutes 40 --cool 12

`target/` is a checkpoint for transformers and for `spec-compile export --target`, with the average
weights; `target/run/` holds what the next call goes on from.
"""

from __future__ import annotations

import argparse
import logging
import shutil
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import MarianConfig, MarianMTModel

from examples.specdec.losses import smoothed_cross_entropy
from examples.specdec.pairs import IGNORED, Batch, batches, read_pairs
from examples.specdec.running import Rates, Run, train
from examples.specdec.vocabulary import EOS_ID, LONGEST, PAD_ID

TOKENS_PER_STEP = 4096
LABEL_SMOOTHING = 0.1
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def make_config(vocab_size: int) -> MarianConfig:
    """3 encoder layers and 4 decoder layers of width 192, one embedding for everything."""
    return MarianConfig(
        vocab_size=vocab_size,
        d_model=192,
        encoder_layers=3,
        decoder_layers=4,
        encoder_ffn_dim=512,
        decoder_ffn_dim=256,
        encoder_attention_heads=6,
        decoder_attention_heads=6,
        activation_function="relu",
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        init_std=0.05,
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
        max_position_embeddings=2 * LONGEST,
        pad_token_id=PAD_ID,
        eos_token_id=EOS_ID,
        forced_eos_token_id=None,
        decoder_start_token_id=PAD_ID,
        bos_token_id=None,
    )


def target_loss(model: MarianMTModel, batch: Batch) -> Tensor:
    """Cross entropy with label smoothing over the real target tokens."""
    labels = batch.labels
    inputs = torch.cat([torch.full_like(batch.target[:, :1], PAD_ID), batch.target[:, :-1]], 1)
    hidden = model.model(
        input_ids=batch.source,
        attention_mask=batch.source_mask,
        decoder_input_ids=inputs,
    ).last_hidden_state
    real = labels != IGNORED
    return smoothed_cross_entropy(hidden[real], model.lm_head.weight, labels[real], LABEL_SMOOTHING)


def save_target(run: Run, config: MarianConfig, vocabulary: Path, folder: Path) -> None:
    """Write the checkpoint with average weights in float16 and its tokenizer."""
    copy = MarianMTModel(config)
    copy.load_state_dict(run.averaged())
    halved = {name: weight.half() for name, weight in copy.state_dict().items()}
    copy.save_pretrained(folder, state_dict=halved)
    for name in TOKENIZER_FILES:
        shutil.copyfile(vocabulary / name, folder / name)


def main() -> None:
    """Train for some minutes and write the checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("vocabulary", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=40)
    parser.add_argument("--cool", type=float, default=0, help="of them with falling rates")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    tokenizer = Tokenizer.from_file(str(arguments.vocabulary / "tokenizer.json"))
    pairs = read_pairs(arguments.corpus / "train.tsv", tokenizer)
    torch.manual_seed(0)
    config = make_config(tokenizer.get_vocab_size())
    config._attn_implementation = "eager"  # the fused kernel's backward is slow on short rows
    model = MarianMTModel(config)
    run = Run(model, Rates())
    folder = arguments.output / "run"
    folder.mkdir(parents=True, exist_ok=True)
    run.resume(folder)
    stream = batches(pairs, TOKENS_PER_STEP, np.random.default_rng(run.steps))
    torch.manual_seed(run.steps)
    train(
        run,
        stream,
        lambda batch: target_loss(model, batch),
        folder,
        minutes=arguments.minutes,
        cool=arguments.cool,
    )
    save_target(run, config, arguments.vocabulary, arguments.output)


if __name__ == "__main__":
    main()
