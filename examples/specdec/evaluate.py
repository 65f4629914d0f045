"""Measure a target and its Spec-Drafter on the held-out text, in plain torch.

    python -m examples.specdec.evaluate corpus target drafter -o figures.json

Tokens per iteration at k = 5, 10 and 25 for beta 1 and for beta 5, tau 3; BLEU and chrF of each
output, of greedy decoding and of beam 5 by transformers; whether beta 1 gives the greedy tokens.
Only texts of at least `--words` English words are taken: shorter ones fit into one block. This is
the reference loop, written for reading; speed is measured on compiled bundles.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from tokenizers import Tokenizer
from torch import Tensor
from transformers import MarianMTModel

from examples.specdec.distill import LONGEST_ANSWER, load_target, translate
from examples.specdec.pairs import mask_of, padded, read_text
from examples.specdec.vocabulary import EOS_ID, LONGEST, PAD_ID
from spec_compile.acceptance.specdec import SpecDec
from spec_compile.export.spec_drafter import SpecDrafter
from spec_compile.export.spec_drafter_files import load_spec_drafter

BLOCK_SIZES = (5, 10, 25)
RULES = (SpecDec(1, 0.0), SpecDec(5, 3.0))
ROWS_AT_ONCE = 64
BEAMS = 5
FEWEST_WORDS = 5


@dataclass(frozen=True)
class Quality:
    """Scores of some translations against the references, by sacrebleu."""

    bleu: float
    chrf: float


@dataclass(frozen=True)
class Speculation:
    """What speculation with one block size and one rule did.

    Args:
        k: draft tokens an iteration.
        beta: see `SpecDec`.
        tau: see `SpecDec`.
        tokens_per_iteration: emitted tokens, ends counted, by iterations of all texts.
        same_as_greedy: share of the texts whose tokens are those of greedy decoding.
        bleu: of the translations.
        chrf: of the translations.
    """

    k: int
    beta: int
    tau: float
    tokens_per_iteration: float
    same_as_greedy: float
    bleu: float
    chrf: float


class Rounds:
    """Speculative translation of some texts side by side: draft a block, verify it, go on.

    The target reads every prefix anew, so that nothing can go stale: slow, and plain to see.
    """

    def __init__(
        self,
        target: MarianMTModel,
        drafter: SpecDrafter,
        rule: SpecDec,
        num_speculative_tokens: int,
        sources: Sequence[Sequence[int]],
    ) -> None:
        self.target, self.drafter, self.rule = target, drafter, rule
        self.k = num_speculative_tokens
        self.source, self.source_lengths = padded(sources)
        mask = mask_of(self.source_lengths, self.source.shape[1]).long()
        self.encoded = target.model.encoder(self.source, attention_mask=mask).last_hidden_state
        self.memory = drafter.encode(self.source, self.source_lengths)
        self.answers: list[list[int]] = [[] for _ in sources]
        self.iterations = 0

    def run(self) -> list[list[int]]:
        """Translations with their `</s>`, cut at the longest answer."""
        while active := [row for row, answer in enumerate(self.answers) if not _ended(answer)]:
            for row, emitted in zip(active, self._round(active), strict=True):
                for token in emitted:
                    if not _ended(self.answers[row]):
                        self.answers[row].append(token)
            self.iterations += len(active)
        return self.answers

    def _round(self, rows: list[int]) -> list[list[int]]:
        prefix, lengths = padded([[PAD_ID, *self.answers[row]] for row in rows])
        drafts = self.drafter.propose(
            self.memory[rows], self.source_lengths[rows], prefix, lengths, self.k
        ).argmax(dim=-1)
        output, count = self.rule(drafts, None, self._logits(rows, prefix, lengths, drafts), None)
        return [row[:n] for row, n in zip(output.tolist(), count.tolist(), strict=True)]

    def _logits(self, rows: list[int], prefix: Tensor, lengths: Tensor, drafts: Tensor) -> Tensor:
        """The target's logits [B, k + 1, V] behind each prefix and each of its draft tokens."""
        slots = lengths[:, None] + torch.arange(self.k)
        wide = torch.nn.functional.pad(prefix, (0, self.k)).scatter(1, slots, drafts)
        source = self.source_lengths[rows]
        hidden = self.target.model.decoder(
            input_ids=wide,
            encoder_hidden_states=self.encoded[rows],
            encoder_attention_mask=mask_of(source, self.source.shape[1]).long(),
        ).last_hidden_state
        places = (lengths[:, None] - 1 + torch.arange(self.k + 1))[..., None]
        picked = hidden.gather(1, places.expand(-1, -1, hidden.shape[-1]))
        logits: Tensor = self.target.lm_head(picked) + self.target.final_logits_bias
        return logits


def _ended(answer: list[int]) -> bool:
    return len(answer) >= LONGEST_ANSWER or (bool(answer) and answer[-1] == EOS_ID)


def speculate(
    target: MarianMTModel,
    drafter: SpecDrafter,
    rule: SpecDec,
    num_speculative_tokens: int,
    sources: Sequence[Sequence[int]],
) -> tuple[list[list[int]], int]:
    """Translations in the order of `sources`, and how many iterations they took together."""
    order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    answers: list[list[int]] = [[] for _ in sources]
    iterations = 0
    for start in range(0, len(order), ROWS_AT_ONCE):
        chosen = order[start : start + ROWS_AT_ONCE]
        with torch.inference_mode():
            some = [sources[index] for index in chosen]
            rounds = Rounds(target, drafter, rule, num_speculative_tokens, some)
            for index, answer in zip(chosen, rounds.run(), strict=True):
                answers[index] = answer
        iterations += rounds.iterations
    return answers, iterations


def quality(answers: Sequence[str], references: Sequence[str]) -> Quality:
    """BLEU and chrF with sacrebleu's defaults."""
    wanted = [list(references)]
    return Quality(
        BLEU().corpus_score(list(answers), wanted).score,
        CHRF().corpus_score(list(answers), wanted).score,
    )


def evaluate(
    target: MarianMTModel,
    drafter: SpecDrafter,
    tokenizer: Tokenizer,
    texts: Sequence[tuple[str, str]],
) -> dict[str, object]:
    """All figures of some pairs of text and reference."""
    sources = [encoding.ids for encoding in tokenizer.encode_batch_fast([e for e, _ in texts])]
    references = [german for _, german in texts]

    def scored(answers: Sequence[Sequence[int]]) -> Quality:
        return quality([tokenizer.decode(list(answer)) for answer in answers], references)

    greedy = translate(target, sources)
    found: list[Speculation] = []
    for rule in RULES:
        for k in BLOCK_SIZES:
            answers, iterations = speculate(target, drafter, rule, k, sources)
            same = sum(one == other for one, other in zip(answers, greedy, strict=True))
            tokens = sum(map(len, answers))
            scores = scored(answers)
            settings = k, rule.beta, rule.tau, tokens / iterations, same / len(texts)
            found.append(Speculation(*settings, scores.bleu, scores.chrf))
            print(found[-1], flush=True)
    return {
        "texts": len(texts),
        "greedy_tokens": sum(map(len, greedy)),
        "greedy": asdict(scored(greedy)),
        "beam_5": asdict(scored(translate(target, sources, beams=BEAMS))),
        "speculation": [asdict(one) for one in found],
    }


def main() -> None:
    """Measure and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("drafter", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--words", type=int, default=FEWEST_WORDS)
    parser.add_argument("--limit", type=int, help="take the first texts alone")
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(arguments.target / "tokenizer.json"))
    texts = [
        (english, german)
        for english, german in read_text(arguments.corpus / "held_out.tsv")
        if len(english.split()) >= arguments.words and len(tokenizer.encode(english).ids) <= LONGEST
    ][: arguments.limit]
    target, drafter = load_target(arguments.target), load_spec_drafter(arguments.drafter)
    figures = evaluate(target, drafter, tokenizer, texts)
    figures["fewest_words"] = arguments.words
    arguments.output.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
