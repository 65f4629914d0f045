"""Measure a draft: on held-out labelled text, in real rounds of a bundle, and its cost.

    python -m examples.distill_draft.evaluate TARGET DRAFT --data data --bundle bundle -o out.json

The bundle is compiled when it is not there. Prompts are held-out ones of kinds chat and code.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from benchmarks.figures.graph_calls import Arrays, GraphCall, time_side_by_side, zeros
from examples.distill_draft.generate import encode
from examples.distill_draft.measure import measure
from examples.distill_draft.model import SIZES, load_draft
from examples.distill_draft.prompts import make_prompt
from examples.distill_draft.store import read_shards, shard_names
from spec_compile.config import SpecConfig
from spec_compile.driver import compile
from spec_compile.runtime.api import Decoder, load
from spec_compile.runtime.stats import GenerationStats, pool

KINDS, TEMPERATURES = ("chat", "code"), (0.0, 1.0)
MAX_LENGTH, NEW_TOKENS = 508, 128
VALID, TIMED_CALLS = 128, 100


def main() -> None:
    """Measure, print, and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", type=Path, help="checkpoint folder of the target")
    parser.add_argument("draft", type=Path, help="compact draft")
    parser.add_argument("--bundle", type=Path, required=True, help="used, or made when missing")
    parser.add_argument("--data", type=Path, help="folder that generate.py wrote")
    parser.add_argument("--prompts", type=int, default=16, help="prompts of each kind")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if not arguments.bundle.exists():
        config = SpecConfig(max_length=MAX_LENGTH)
        compile(str(arguments.target), str(arguments.draft), arguments.bundle, config)
    decoder = load(arguments.bundle, num_threads=arguments.threads)
    tokenizer: Any = AutoTokenizer.from_pretrained(arguments.target)
    figures: dict[str, Any] = {
        "prompts": arguments.prompts,
        "rounds": rounds_figures(decoder, tokenizer, arguments.prompts),
        "cost": cost_figures(decoder, arguments.threads),
    }
    if arguments.data is not None:
        figures["held_out"] = held_out_figures(arguments.target, arguments.draft, arguments.data)
    text = json.dumps(figures, indent=2) + "\n"
    sys.stdout.write(text)
    if arguments.output is not None:
        arguments.output.write_text(text, encoding="utf-8")


def held_out_figures(target: Path, draft: Path, data: Path) -> dict[str, dict[str, float]]:
    """`measure` over the held-out texts of `data`."""
    embeddings = load_file(target / "model.safetensors")["model.embed_tokens.weight"].float()
    texts = [text for text in read_shards(data, shard_names(data)) if text.is_held_out]
    return measure(load_draft(draft, embeddings, SIZES).train(False), texts)


def rounds_figures(decoder: Decoder, tokenizer: Any, count: int) -> dict[str, Any]:
    """Acceptance in real rounds, by kind of prompt and temperature."""
    figures = {}
    for kind, temperature in itertools.product(KINDS, TEMPERATURES):
        results = decoder.generate(
            held_out_prompts(tokenizer, kind, count),
            max_new_tokens=NEW_TOKENS,
            temperature=temperature,
            seed=0,
        )
        figures[f"{kind} at temperature {temperature:.0f}"] = summary(
            pool([result.stats for result in results])
        )
    return figures


def held_out_prompts(tokenizer: Any, kind: str, count: int) -> list[list[int]]:
    """Token ids of the first `count` held-out prompts of a kind."""
    prompts = (make_prompt(number) for number in itertools.count())
    chosen = (prompt for prompt in prompts if prompt.kind == kind and prompt.is_held_out)
    return [encode(tokenizer, prompt) for prompt in itertools.islice(chosen, count)]


def summary(stats: GenerationStats) -> dict[str, Any]:
    """Tokens a round, and of the drafts at each position how many were kept.

    `given` counts the rounds in which all drafts before that position were kept, `of_all` every
    round that proposed one there.
    """
    given, of_all = [], []
    for position in range(1, stats.num_speculative_tokens + 1):
        proposed = [one for one in stats.rounds if one.num_draft_tokens >= position]
        reached = [one for one in proposed if one.num_accepted_tokens >= position - 1]
        kept = sum(one.num_accepted_tokens >= position for one in proposed)
        given.append(round(kept / max(1, len(reached)), 4))
        of_all.append(round(kept / max(1, len(proposed)), 4))
    return {
        "rounds": stats.num_rounds,
        "tokens_per_round": round(stats.block_efficiency, 3),
        "kept_given_those_before": given,
        "kept_of_all": of_all,
    }


def cost_figures(decoder: Decoder, threads: int) -> dict[str, float]:
    """Milliseconds of one draft call and one verify call side by side: one row, temperature 1."""
    calls = {}
    for name, new in (("draft", 2), ("verify", 1)):
        graph = decoder.manifest.graphs[name]
        arrays: Arrays = zeros(graph.inputs, new)
        arrays["num_new"][:], arrays["lengths"][:] = new, VALID
        arrays["tokens"][:] = 1 + np.arange(new)
        for option in ("temperature", "top_p"):
            arrays[option][:] = 1.0
        if name == "verify":
            arrays["draft_probs"][..., 0] = 1.0
        fresh = zeros([tensor for tensor in graph.outputs if tensor.alias_of is None], new)
        aliases = {t.name: arrays[t.alias_of] for t in graph.outputs if t.alias_of is not None}
        path = decoder.bundle.path(graph.file)
        call = GraphCall(path, path.parent, threads)
        calls[name] = call.bind(arrays, fresh | aliases)
    times = time_side_by_side(calls, TIMED_CALLS)
    figures = {}
    for name, values in times.items():
        figures[f"{name}_ms_median"] = round(float(np.median(values)), 2)
        figures[f"{name}_ms_minimum"] = round(min(values), 2)
    figures["draft_share_of_verify"] = round(
        figures["draft_ms_median"] / figures["verify_ms_median"], 3
    )
    return figures


if __name__ == "__main__":
    main()
