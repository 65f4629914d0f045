"""The joint vocabulary of both languages: byte-level BPE, so that every text has its tokens.

python -m examples.specdec.vocabulary corpus -o vocabulary
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SIZE = 4000
PAD, EOS, UNKNOWN = "<pad>", "</s>", "<unk>"
PAD_ID, EOS_ID = 0, 1
LONGEST = 160  # tokens of one side, its end among them


def make_vocabulary(text: Path, size: int = SIZE) -> Tokenizer:
    """Learn from the file of pairs; encoding a text ends it with `</s>`."""
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[PAD, EOS, UNKNOWN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    with text.open(encoding="utf-8") as lines:
        sides = (side for line in lines for side in line.rstrip("\n").split("\t"))
        tokenizer.train_from_iterator(sides, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS}", special_tokens=[(EOS, EOS_ID)]
    )
    return tokenizer


def save_vocabulary(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the two files that transformers, and a bundle, load a tokenizer from."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "eos_token": EOS,
        "unk_token": UNKNOWN,
        "model_max_length": LONGEST,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")


def main() -> None:
    """Learn the vocabulary of the training text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--size", type=int, default=SIZE)
    arguments = parser.parse_args()
    tokenizer = make_vocabulary(arguments.corpus / "train.tsv", arguments.size)
    save_vocabulary(tokenizer, arguments.output)
    print(f"{tokenizer.get_vocab_size()} pieces")


if __name__ == "__main__":
    main()
