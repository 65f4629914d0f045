"""The one tokenizer of the pair: byte-level BPE, so that every text comes back as it was."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 0
VOCAB_SIZE = 2048

TokenStream = NDArray[np.int64]


def train_tokenizer(texts: Sequence[str], vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Learn the merges; id 0 is the end of text, the 256 bytes are always known."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode_stream(tokenizer: Tokenizer, texts: Sequence[str]) -> TokenStream:
    """All documents as one row of ids, each followed by the end-of-text id."""
    stream: list[int] = [END_OF_TEXT_ID]
    for encoding in tokenizer.encode_batch_fast(list(texts)):
        stream.extend(encoding.ids)
        stream.append(END_OF_TEXT_ID)
    return np.asarray(stream, dtype=np.int64)
