"""NumPy twins of the acceptance rules: what the graph has to emit, written for reading.

`RULES[name](draft_tokens, draft_probs, target_probs, uniforms)` takes and gives arrays of the
shapes that the rule of that name has in `spec_compile.acceptance`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from spec_compile.runtime.acceptance import several, single
from spec_compile.runtime.acceptance.decisions import UniformDecisions

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int64]
RowRule = Callable[..., list[int]]
BatchRule = Callable[[Ints, Floats | None, Floats, Floats | None], tuple[Ints, Ints]]

ROW_RULES: Mapping[str, RowRule] = MappingProxyType(
    {
        "greedy": single.greedy,
        "rejection": single.rejection,
        "block": single.block,
        "match": single.match,
        "typical": single.typical,
        "lenient": single.lenient,
        "specdec": single.specdec,
        "kseq": several.kseq,
        "recursive": several.recursive,
        "recursive_wor": several.recursive_wor,
        "fanout": several.fanout,
        "topk_plus_one": several.fanout,
    }
)


def batched(rule: RowRule) -> BatchRule:
    """A rule for a row as one for a batch."""

    def run(
        draft_tokens: Ints,
        draft_probs: Floats | None,
        target_probs: Floats,
        uniforms: Floats | None,
    ) -> tuple[Ints, Ints]:
        output = np.full((len(draft_tokens), draft_tokens.shape[-1] + 1), -1, dtype=np.int64)
        counts = np.zeros(len(draft_tokens), dtype=np.int64)
        for row, tokens in enumerate(draft_tokens.tolist()):
            laws = None if draft_probs is None else draft_probs[row]
            decide = None if uniforms is None else UniformDecisions(uniforms[row].tolist())
            emitted = rule(tokens, laws, target_probs[row], decide)
            output[row, : len(emitted)] = emitted
            counts[row] = len(emitted)
        return output, counts

    return run


RULES: Mapping[str, BatchRule] = MappingProxyType(
    {name: batched(rule) for name, rule in ROW_RULES.items()}
)
