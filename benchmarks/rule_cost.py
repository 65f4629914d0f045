"""Cost of every acceptance rule alone on ONNX Runtime: laws in, tokens out, no model.

    python benchmarks/rule_cost.py [kseq fanout ...] [--vocab-size 49152] [-k 4] [--num-drafts 8]

Prints nodes, export seconds, median and minimum milliseconds of one row, the rules taking turns.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import onnxruntime as ort
import torch
from torch import Tensor, nn

from spec_compile.acceptance import RULES, Rule, SeveralDraftsRule
from spec_compile.runtime.engines.onnxruntime import session_options

NAMES = ("draft_tokens", "draft_probs", "target_probs", "uniforms")


class Bare(nn.Module):
    """One rule alone, on laws."""

    def __init__(self, rule: Rule) -> None:
        super().__init__()
        self.rule = rule

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """See `Rule.__call__`."""
        tokens, draft, target, uniforms = inputs
        return self.rule(tokens, draft, target, uniforms)


def inputs(rule: Rule, vocab_size: int, k: int, num_drafts: int) -> tuple[Tensor, ...]:
    """One row: Zipf-like laws, drafts from the draft's law."""
    generator = torch.Generator().manual_seed(0)
    ranks = torch.rand(k + 1, vocab_size, generator=generator).argsort(dim=-1) + 1
    logits = torch.randn(ranks.shape, generator=generator) - 1.6 * ranks.log()
    noise = 0.3 * torch.randn(ranks.shape, generator=generator)
    target, draft = logits.softmax(-1), (logits + noise).softmax(-1)[:k]
    drafts = num_drafts if isinstance(rule, SeveralDraftsRule) else 1
    tokens = draft.multinomial(drafts, generator=generator).T[None]
    (width,) = rule.uniforms_shape(drafts, k)
    uniforms = torch.rand(1, width, generator=generator)
    laws = [law.expand(1, drafts, -1, -1).contiguous() for law in (draft, target)]
    if isinstance(rule, SeveralDraftsRule):
        return tokens, *laws, uniforms
    return tokens[:, 0], laws[0][:, 0], laws[1][:, 0], uniforms


def build(rule: Rule, example: tuple[Tensor, ...]) -> Any:
    """The rule as an ONNX model with symbolic rows."""
    pair = tuple(torch.cat([tensor, tensor]) for tensor in example)
    program = torch.onnx.export(
        Bare(rule).eval(),
        pair,
        dynamic_shapes=(({0: torch.export.Dim("B")},) * len(pair),),
        input_names=list(NAMES),
        opset_version=24,
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    return program.model_proto


def main() -> int:
    """Export, measure, print."""
    known = [name for name, rule in RULES.items() if rule.samples and name != "topk_plus_one"]
    parser = argparse.ArgumentParser(description="cost of acceptance rules on ONNX Runtime")
    parser.add_argument("rules", nargs="*", metavar="RULE", help=f"of {', '.join(known)}")
    parser.add_argument("--vocab-size", type=int, default=49_152)
    parser.add_argument("-k", type=int, default=4)
    parser.add_argument("--num-drafts", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--calls", type=int, default=200)
    args = parser.parse_args()
    torch.set_num_threads(1)
    runs: dict[str, tuple[Any, dict[str, Any]]] = {}
    times: dict[str, list[float]] = {}
    for name in args.rules or known:
        example = inputs(RULES[name], args.vocab_size, args.k, args.num_drafts)
        start = time.perf_counter()
        model = build(RULES[name], example)
        seconds = time.perf_counter() - start
        print(f"{name:15s} {len(model.graph.node):5d} nodes, exported in {seconds:.1f} s")
        options = session_options(ort, args.threads)
        session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        taken = {node.name for node in session.get_inputs()}
        arrays = {key: t.numpy() for key, t in zip(NAMES, example, strict=True) if key in taken}
        runs[name], times[name] = (session, arrays), []
    for _ in range(args.calls):
        for name, (session, arrays) in runs.items():
            session.run(None, arrays)
            start = time.perf_counter()
            session.run(None, arrays)
            times[name].append((time.perf_counter() - start) * 1e3)
    for name, values in times.items():
        print(f"{name:15s} median {statistics.median(values):.3f} ms   min {min(values):.3f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
