"""Let the target translate the training text greedily: what the drafter learns from.

    python -m examples.specdec.distill corpus target -o distilled.tsv --minutes 10

Translates in the corpus' order, which is random, as many texts as the time allows, and goes on
where an earlier call stopped. A text whose translation does not end is left out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel

from examples.specdec.pairs import mask_of, padded, read_text
from examples.specdec.vocabulary import EOS_ID, LONGEST

TEXTS_AT_ONCE = 4096
ROWS_AT_ONCE = 256
LONGEST_ANSWER = 96


def load_target(folder: Path) -> PreTrainedModel:
    """The target in float32, ready to translate."""
    model: PreTrainedModel = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32)
    model.train(False)
    return model


def translate(
    model: PreTrainedModel, sources: Sequence[Sequence[int]], beams: int = 1
) -> list[list[int]]:
    """Translations with their `</s>`, in the order of `sources`; cut at the longest answer."""
    order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    answers: list[list[int]] = [[] for _ in sources]
    rows = max(1, ROWS_AT_ONCE // beams)
    for start in range(0, len(order), rows):
        chosen = order[start : start + rows]
        tokens, lengths = padded([sources[index] for index in chosen])
        with torch.inference_mode():
            found = model.generate(  # type: ignore[operator]
                input_ids=tokens,
                attention_mask=mask_of(lengths, tokens.shape[1]).long(),
                num_beams=beams,
                do_sample=False,
                max_new_tokens=LONGEST_ANSWER,
            )
        for index, answer in zip(chosen, found[:, 1:].tolist(), strict=True):
            end = answer.index(EOS_ID) + 1 if EOS_ID in answer else len(answer)
            answers[index] = answer[:end]
    return answers


def distilled(
    model: PreTrainedModel, tokenizer: Tokenizer, texts: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Pairs of a text and the target's translation."""
    sources = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)]
    fit = [index for index, source in enumerate(sources) if len(source) <= LONGEST]
    for index, answer in zip(fit, translate(model, [sources[i] for i in fit]), strict=True):
        german = " ".join(tokenizer.decode(answer).split())
        if answer[-1] == EOS_ID and german:
            yield texts[index], german


def main() -> None:
    """Translate for some minutes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=10)
    arguments = parser.parse_args()
    texts = [english for english, _ in read_text(arguments.corpus / "train.tsv")]
    done = len(read_text(arguments.output)) if arguments.output.is_file() else 0
    first = texts.index(read_text(arguments.output)[-1][0]) + 1 if done else 0
    model = load_target(arguments.target)
    tokenizer = Tokenizer.from_file(str(arguments.target / "tokenizer.json"))
    begin = time.monotonic()
    for start in range(first, len(texts), TEXTS_AT_ONCE):
        if time.monotonic() - begin > 60 * arguments.minutes:
            break
        part = list(distilled(model, tokenizer, texts[start : start + TEXTS_AT_ONCE]))
        with arguments.output.open("a", encoding="utf-8") as file:
            file.writelines(f"{english}\t{german}\n" for english, german in part)
        done += len(part)
        print(f"{done} pairs, {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
