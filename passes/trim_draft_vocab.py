"""Cut the head of the draft to the tokens that it may propose: its law is 0 on all others.

Whatever law a draft proposes from, the acceptance rules keep the target's. A head of the most
frequent tokens is a fraction of the work, and so are the sampling transforms over it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from spec_compile.config import SpecConfig
from spec_compile.errors import PreconditionError
from spec_compile.graph_call import invoke
from spec_compile.passes.base import Mismatch, Pass, PassResult
from spec_compile.passes.draft_vocab import TOKEN_IDS, is_trimmed
from spec_compile.passes.head import HIDDEN, Head, find_head, take_head_off
from spec_compile.program import Composite, Graph, Program, trace


class TrimmedDraft(Composite):
    """The draft model with logits [B, T, N] of N tokens, and their `token_ids` [N] int64.

    Args:
        model: the captured draft; `hidden` among its outputs in place of `logits` with a head.
        token_ids: [N] int64, ascending.
        num_known: ids below it have an embedding, others are read as the last of them; None when
            the model can read every id.
        head: weight and bias of the N rows, and what follows them; None selects among logits.
    """

    def __init__(
        self, model: Graph, token_ids: Tensor, num_known: int | None, head: Head | None
    ) -> None:
        super().__init__()
        self.graph, self.head, self.num_known = model, head, num_known
        self.inputs = model.inputs
        self.draft = nn.Module()
        self.draft.register_buffer(TOKEN_IDS, token_ids)
        if head is not None:
            self.draft.trimmed_head = nn.Parameter(head.weight, requires_grad=False)
            if head.bias is not None:
                self.draft.trimmed_bias = nn.Parameter(head.bias, requires_grad=False)

    def compute(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One forward; see the class."""
        tokens = tensors["tokens"]
        if self.num_known is not None:
            tokens = tokens.clamp(max=self.num_known - 1)
        outputs = invoke(self.graph, {**tensors, "tokens": tokens})
        ids = self.draft.get_buffer(TOKEN_IDS)
        caches = {s.name: outputs[s.name] for s in self.graph.outputs if s.is_cache}
        if self.head is None:
            logits = outputs["logits"].index_select(-1, ids)
        else:
            weights = dict(self.draft.named_parameters())
            product = nn.functional.linear(
                outputs[HIDDEN], weights["trimmed_head"], weights.get("trimmed_bias")
            )
            logits = self.head.finish(product)
        return {"logits": logits, **caches, TOKEN_IDS: ids.clone()}


class TrimDraftVocab(Pass):
    """Cut the head of the draft to the tokens that it may propose."""

    name = "trim_draft_vocab"

    def __init__(
        self,
        config: SpecConfig,
        token_ids: Sequence[int] | None,
        vocab_size: int,
        max_length: int,
    ) -> None:
        self.config, self.vocab_size, self.max_length = config, vocab_size, max_length
        self.token_ids = None if token_ids is None else torch.tensor(token_ids, dtype=torch.int64)

    def requires(self, program: Program) -> None:
        self.need(program, "draft")
        draft, ids = program.graphs["draft"], self.token_ids
        if ids is None or not _is_whole(draft):
            return
        known = min(self.vocab_size, _num_rows(draft))
        ascends = len(ids) > 0 and bool((ids.diff() > 0).all())
        if not ascends or int(ids[0]) < 0 or int(ids[-1]) >= known:
            raise PreconditionError(
                f"pass {self.name} needs ascending ids below the {known} of the draft"
            )

    def call(self, program: Program) -> PassResult:
        draft = program.graphs["draft"]
        if self.token_ids is None or not _is_whole(draft):
            return PassResult(program, 0)
        rows = _num_rows(draft)
        num_known = rows if rows < self.vocab_size else None
        found, misses = find_head(draft), list[Mismatch]()
        if isinstance(found, Mismatch):
            misses.append(found)
            module = TrimmedDraft(draft, self.token_ids, num_known, None)
        else:
            head = found.rows(self.token_ids)
            module = TrimmedDraft(take_head_off(draft), self.token_ids, num_known, head)
        graph = trace(module, batch_size=self.config.batch_size, max_length=self.max_length)
        names = dict(program.weight_names)
        for name, weight in module.draft.named_parameters():
            names.setdefault(weight.data_ptr(), f"draft.{name}")
        for name, buffer in module.draft.named_buffers():
            names.setdefault(buffer.data_ptr(), f"draft.{name}")
        program = program.with_graph("draft", graph).with_weight_names(names)
        return PassResult(program, 1, tuple(misses))


def _is_whole(graph: Graph) -> bool:
    """Whether `graph` is one forward of the draft model, not yet trimmed."""
    return _num_rows(graph) > 0 and not is_trimmed(graph)


def _num_rows(graph: Graph) -> int:
    return next((int(s.shape[-1]) for s in graph.outputs if s.name == "logits"), 0)
