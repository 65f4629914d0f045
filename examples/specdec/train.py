"""Train the Spec-Drafter on the target's own translations, or go on with it.

    python -m examples.specdec.train distilled.tsv target -o drafter --minutes 30 --cool 10

A row is a text, a random prefix of its translation, and a block of masks behind it. Training is
glancing (Qian et al. 2021, arXiv 2008.07905): a first pass without gradient says how much of the
block the drafter gets wrong, and a share of that many tokens is shown to the second pass, which
learns the rest. `drafter/` is what `spec-compile export --draft` takes, with the average weights.
"""

from __future__ import annotations

import argparse
import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedModel

from examples.specdec.distill import load_target
from examples.specdec.losses import smoothed_cross_entropy
from examples.specdec.pairs import Batch, batches, read_pairs, stepped
from examples.specdec.running import Rates, Run, train
from examples.specdec.vocabulary import LONGEST, PAD_ID
from spec_compile.export.compact_draft import tokenizer_hash
from spec_compile.export.spec_drafter import DrafterSizes, SpecDrafter
from spec_compile.export.spec_drafter_files import save_spec_drafter

TOKENS_PER_STEP = 3072
LABEL_SMOOTHING = 0.1
BLOCK_SIZES = (5, 10, 25)
SHOWN_AT_FIRST, SHOWN_AT_LAST = 0.5, 0.3  # of the tokens that the first pass gets wrong
STEPS_OF_SHOWING = 4000
DECODER_LAYERS = 2


@dataclass(frozen=True)
class Blocks:
    """Prefixes and what follows them: [B, T], [B], [B, k] with -1 behind the end."""

    prefix: Tensor
    prefix_lengths: Tensor
    wanted: Tensor


def sizes_for(target: PreTrainedModel) -> DrafterSizes:
    """An encoder like the target's, and two decoder layers."""
    config = target.config
    return DrafterSizes(
        vocab_size=config.vocab_size,
        hidden_size=config.d_model,
        num_heads=config.encoder_attention_heads,
        encoder_layers=config.encoder_layers,
        decoder_layers=DECODER_LAYERS,
        encoder_ffn_size=config.encoder_ffn_dim,
        decoder_ffn_size=config.decoder_ffn_dim,
        max_speculative_tokens=max(BLOCK_SIZES),
        max_length=2 * LONGEST,
    )


def begin_from(target: PreTrainedModel, drafter: SpecDrafter) -> None:
    """Copy the target's embeddings and encoder, and its last decoder layers."""
    state = target.model.state_dict()
    drafter.shared.weight.data.copy_(state["shared.weight"])
    for name, weight in drafter.encoder.named_parameters():
        weight.data.copy_(state[f"encoder.{name}"])
    skipped = target.config.decoder_layers - len(drafter.decoder.layers)
    for index, layer in enumerate(drafter.decoder.layers):
        for name, weight in layer.named_parameters():
            weight.data.copy_(state[f"decoder.layers.{skipped + index}.{name}"])
    torch.nn.init.normal_(drafter.mask_queries.weight, std=0.5)


def cut_blocks(batch: Batch, block_size: int, generator: torch.Generator) -> Blocks:
    """A random prefix of every row's target, and the block behind it."""
    kept = (torch.rand(len(batch.lengths), generator=generator) * batch.lengths).long()
    start = torch.full_like(batch.target[:, :1], PAD_ID)
    prefix = torch.cat([start, batch.target], dim=1)[:, : stepped(int(kept.max()) + 1)]
    places = kept[:, None] + torch.arange(block_size)
    inside = places < batch.lengths[:, None]
    picked = batch.target.gather(1, places.clamp(max=batch.target.shape[1] - 1))
    return Blocks(prefix, kept + 1, torch.where(inside, picked, -1))


def glance(best: Tensor, wanted: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Hints [B, k]: random tokens of `wanted`, as many as `share` of the wrong ones of `best`."""
    inside = wanted >= 0
    wrong = ((best != wanted) & inside).sum(dim=1)
    order = torch.rand(wanted.shape, generator=generator).masked_fill(~inside, 2.0)
    rank = order.argsort(dim=1).argsort(dim=1)
    shown = (rank < (share * wrong).round()[:, None]) & inside
    return torch.where(shown, wanted, -1)


def drafter_loss(
    drafter: SpecDrafter, batch: Batch, share: float, generator: torch.Generator
) -> Tensor:
    """Cross entropy with label smoothing over the masked tokens of random blocks."""
    choice = torch.randint(len(BLOCK_SIZES), (1,), generator=generator).item()
    block_size = BLOCK_SIZES[int(choice)]
    blocks = cut_blocks(batch, block_size, generator)
    memory = drafter.encode(batch.source, batch.source_lengths)
    place = (batch.source_lengths, blocks.prefix, blocks.prefix_lengths, block_size)
    with torch.no_grad():
        best = drafter.propose(memory, *place).argmax(dim=-1)
    # It holds weights cast without gradient, which the second pass must not meet.
    torch.clear_autocast_cache()
    hints = glance(best, blocks.wanted, share, generator)
    masked = (hints < 0) & (blocks.wanted >= 0)
    states = drafter.block_states(memory, *place, hints)
    return smoothed_cross_entropy(
        states[masked], drafter.shared.weight, blocks.wanted[masked], LABEL_SMOOTHING
    )


def shown_share(steps: int) -> float:
    """How much is shown of what is wrong: falls in a line, then stays."""
    passed = min(1.0, steps / STEPS_OF_SHOWING)
    return SHOWN_AT_FIRST + passed * (SHOWN_AT_LAST - SHOWN_AT_FIRST)


def save_drafter(run: Run, drafter: SpecDrafter, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the drafter with average weights in float16."""
    copy = SpecDrafter(drafter.sizes)
    copy.load_state_dict(run.averaged())
    tokens = {index: token for token, index in tokenizer.get_vocab().items()}
    save_spec_drafter(folder, copy, tokenizer_hash(tokens))


def main() -> None:
    """Train for some minutes and write the drafter."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("distilled", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--cool", type=float, default=0, help="of them with falling rates")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    tokenizer = Tokenizer.from_file(str(arguments.target / "tokenizer.json"))
    pairs = read_pairs(arguments.distilled, tokenizer)
    target = load_target(arguments.target)
    drafter = SpecDrafter(sizes_for(target))
    torch.manual_seed(0)
    begin_from(target, drafter)
    run = Run(drafter, Rates())
    folder = arguments.output / "run"
    folder.mkdir(parents=True, exist_ok=True)
    run.resume(folder)
    generator = torch.Generator().manual_seed(run.steps)
    train(
        run,
        batches(pairs, TOKENS_PER_STEP, np.random.default_rng(run.steps)),
        lambda batch: drafter_loss(drafter, batch, shown_share(run.steps), generator),
        folder,
        minutes=arguments.minutes,
        cool=arguments.cool,
    )
    save_drafter(run, drafter, tokenizer, arguments.output)


if __name__ == "__main__":
    main()
