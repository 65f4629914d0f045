"""Every figure that is reported of the pair, computed from the stored files."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn import functional

from examples.demo_pair.corpus import read_corpus
from examples.demo_pair.models import load_model, num_parameters
from examples.demo_pair.ngram import kneser_ney_loss, unigram_loss
from examples.demo_pair.vocabulary import TokenStream, encode_stream

CONTEXT = 512
ROWS = 8

Figures = Mapping[str, float | int | str]


def measure_pair(target: Path, draft: Path) -> Figures:
    """Losses in nats per token, acceptance and agreement of the pair on the held-out files."""
    started = time.monotonic()
    corpus = read_corpus()
    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    train = encode_stream(tokenizer, corpus.train)
    held_out = encode_stream(tokenizer, corpus.held_out)
    return {
        "corpus_sha256": corpus.digest,
        "train_files": len(corpus.train),
        "held_out_files": len(corpus.held_out),
        "train_tokens": len(train),
        "held_out_tokens": len(held_out),
        "bytes_per_token": round(
            sum(len(text.encode()) for text in corpus.held_out) / len(held_out), 3
        ),
        "unigram_loss": round(unigram_loss(train, held_out), 4),
        "five_gram_loss": round(kneser_ney_loss(train, held_out, order=5), 4),
        **measure_models(target, draft, held_out),
        "files_bytes": sum(
            path.stat().st_size for folder in (target, draft) for path in folder.iterdir()
        ),
        "seconds": round(time.monotonic() - started, 1),
    }


@torch.inference_mode()
def measure_models(target: Path, draft: Path, stream: TokenStream) -> Figures:
    """Compare both models over `stream`, in windows of 512 tokens whose first has no history."""
    target_model, draft_model = load_model(target), load_model(draft)
    totals = np.zeros(4)
    count = 0
    for tokens in _windows(stream):
        target_logs = target_model(input_ids=tokens[:, :-1]).logits.log_softmax(-1).flatten(0, 1)
        draft_logs = draft_model(input_ids=tokens[:, :-1]).logits.log_softmax(-1).flatten(0, 1)
        answers = tokens[:, 1:].flatten()
        accepted = torch.minimum(target_logs.exp(), draft_logs.exp()).sum(-1)
        agreed = target_logs.argmax(-1) == draft_logs.argmax(-1)
        totals += [
            functional.nll_loss(target_logs, answers, reduction="sum").item(),
            functional.nll_loss(draft_logs, answers, reduction="sum").item(),
            accepted.sum().item(),
            agreed.sum().item(),
        ]
        count += len(answers)
    target_loss, draft_loss, acceptance, agreement = (float(total) / count for total in totals)
    return {
        "target_parameters": num_parameters(target_model),
        "draft_parameters": num_parameters(draft_model),
        "measured_tokens": count,
        "target_loss": round(target_loss, 4),
        "draft_loss": round(draft_loss, 4),
        "acceptance": round(acceptance, 4),
        "greedy_agreement": round(agreement, 4),
    }


def _windows(stream: TokenStream) -> tuple[torch.Tensor, ...]:
    pieces = torch.from_numpy(stream[: (len(stream) - 1) // CONTEXT * CONTEXT + 1])
    return torch.split(pieces.unfold(0, CONTEXT + 1, CONTEXT), ROWS)
