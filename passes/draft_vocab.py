"""The tokens that a draft model reads and proposes, against those that the tokenizer knows.

A draft may read and propose what it likes: acceptance keeps the law exact.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from spec_compile.passes.round import fit_vocabulary
from spec_compile.program import Graph

TOKEN_IDS = "token_ids"


def is_trimmed(graph: Graph) -> bool:
    """Whether a draft model has logits of some tokens only, those of its output `token_ids`."""
    return any(spec.name == TOKEN_IDS for spec in graph.outputs)


class DraftVocabulary:
    """Translates between a draft model's ids and the tokenizer's.

    Args:
        model: the draft, trimmed or whole.
        vocab_size: V, ids that the tokenizer knows.
    """

    def __init__(self, model: Graph, vocab_size: int) -> None:
        self.vocab_size, self.is_trimmed = vocab_size, is_trimmed(model)
        rows = next(int(spec.shape[-1]) for spec in model.outputs if spec.name == "logits")
        # A trimmed graph sees to unknown ids itself: it has fewer logits than embeddings.
        self._last = rows - 1 if not self.is_trimmed and rows < vocab_size else None

    def readable(self, tokens: Tensor) -> Tensor:
        """`tokens`, with the draft's last id for those that it has no embedding of."""
        return tokens if self._last is None else tokens.clamp(max=self._last)

    def fit(self, logits: Tensor) -> Tensor:
        """Logits [..., N] that laws are made of: of the trimmed vocabulary, or of all V tokens.

        They are float32, whatever the model computes in.
        """
        fitting = logits if self.is_trimmed else fit_vocabulary(logits, self.vocab_size)
        return fitting.float()

    def token_of(self, index: Tensor, outputs: Mapping[str, Tensor]) -> Tensor:
        """Token ids of places in the laws; `outputs` are the model's."""
        if not self.is_trimmed:
            return index
        return outputs[TOKEN_IDS].index_select(0, index.flatten()).view(index.shape)

    def spread(self, laws: Tensor, outputs: Mapping[str, Tensor]) -> Tensor:
        """Laws [..., N] as laws over all tokens [..., V]."""
        if not self.is_trimmed:
            return laws
        everywhere = laws.new_zeros((*laws.shape[:-1], self.vocab_size))
        return everywhere.scatter(-1, outputs[TOKEN_IDS].expand(laws.shape), laws)
