"""Let the target answer prompts, and store every token with the target's law at its place.

    python -m examples.distill_draft.generate smollm2-135m-instruct -o data --prompts 4000

Go on by calling it again: prompts that are stored already are left out. On few cores several
workers of one thread each are faster than one with several: `--worker 0/2`, `--worker 1/2`.
"""

from __future__ import annotations

import argparse
import logging
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoTokenizer

from examples.distill_draft.prompts import Prompt, make_prompt
from examples.distill_draft.store import Text, read_shards, shard_names, write_shard
from examples.distill_draft.teacher import Teacher, top_law

TEMPERATURES, SHARES = (0.0, 0.3, 0.7, 1.0), (5, 3, 3, 4)
TEXTS_PER_SHARD = 32
LONGEST_PROMPT, LONGEST_ANSWER = 144, 176
_LOG = logging.getLogger(__name__)


@dataclass
class Answer:
    """An answer that is being written."""

    number: int
    prompt: Prompt
    temperature: float
    tokens: list[int]
    start: int
    law_ids: list[Tensor] = field(default_factory=list)
    law_log_probs: list[Tensor] = field(default_factory=list)

    def is_finished(self, eos: int) -> bool:
        """Whether it ended by itself or is as long as it may get."""
        return self.tokens[-1] == eos or len(self.tokens) - self.start >= LONGEST_ANSWER

    def text(self) -> Text:
        """The answer as it is stored."""
        return Text(
            number=self.number,
            kind=self.prompt.kind,
            temperature=self.temperature,
            is_held_out=self.prompt.is_held_out,
            start=self.start,
            tokens=np.array(self.tokens, dtype=np.uint16),
            law_ids=torch.stack(self.law_ids).numpy().astype(np.uint16),
            law_log_probs=torch.stack(self.law_log_probs).numpy().astype(np.float16),
        )


class Writers:
    """Answers that are written together, each in a row of the teacher's caches.

    Args:
        teacher: the target.
        waiting: answers that have not begun.
        eos: id that ends an answer.
        seed: of the sampling.
    """

    def __init__(self, teacher: Teacher, waiting: Iterator[Answer], eos: int, seed: int) -> None:
        self.teacher, self.waiting, self.eos = teacher, waiting, eos
        self.random = torch.Generator().manual_seed(seed)
        self.rows: list[Answer | None] = [None] * teacher.keys.shape[1]

    def run(self) -> Iterator[Answer]:
        """Every answer, when it is finished."""
        self._begin()
        while any(self.rows):
            busy = [row for row, answer in enumerate(self.rows) if answer is not None]
            answers = [self.rows[row] for row in busy]
            last = torch.tensor([[answer.tokens[-1]] for answer in answers if answer])
            lengths = torch.tensor([len(answer.tokens) - 1 for answer in answers if answer])
            hidden = self.teacher.forward(last, torch.tensor(busy), lengths)
            self._extend(busy, hidden[:, 0])
            yield from self._collect()
            self._begin()

    def _begin(self) -> None:
        free = [row for row, answer in enumerate(self.rows) if answer is None]
        for place in range(0, len(free), 8):
            begun = list(zip(free[place : place + 8], self.waiting, strict=False))
            if not begun:
                return
            longest = max(len(answer.tokens) for _, answer in begun)
            padded = torch.tensor(
                [answer.tokens + [0] * (longest - len(answer.tokens)) for _, answer in begun]
            )
            rows = torch.tensor([row for row, _ in begun])
            hidden = self.teacher.forward(padded, rows, torch.zeros_like(rows))
            ends = torch.tensor([len(answer.tokens) - 1 for _, answer in begun])
            for row, answer in begun:
                self.rows[row] = answer
            self._extend(rows.tolist(), hidden[torch.arange(len(begun)), ends])

    def _extend(self, rows: list[int], hidden: Tensor) -> None:
        logits = self.teacher.logits(hidden)
        ids, log_probs = top_law(logits)
        answers = [answer for row in rows if (answer := self.rows[row])]
        for index, answer in enumerate(answers):
            answer.law_ids.append(ids[index])
            answer.law_log_probs.append(log_probs[index])
        drawn = ids[:, 0].clone()
        warm = [index for index, answer in enumerate(answers) if answer.temperature > 0]
        if warm:
            temperatures = torch.tensor([answers[index].temperature for index in warm])
            drawn[warm] = self._draw(logits[warm] / temperatures[:, None])
        for answer, token in zip(answers, drawn.tolist(), strict=True):
            answer.tokens.append(token)

    def _draw(self, logits: Tensor) -> Tensor:
        sums = logits.softmax(dim=-1).cumsum(dim=-1)
        uniforms = torch.rand(len(logits), 1, generator=self.random) * sums[:, -1:]
        return torch.searchsorted(sums, uniforms, right=True)[:, 0].clamp(max=sums.shape[1] - 1)

    def _collect(self) -> Iterator[Answer]:
        for row, answer in enumerate(self.rows):
            if answer is not None and answer.is_finished(self.eos):
                self.rows[row] = None
                yield answer


def new_answers(tokenizer: Any, numbers: Iterator[int], done: set[int]) -> Iterator[Answer]:
    """Answers to the prompts `numbers` that are neither done nor too long."""
    for number in numbers:
        if number in done:
            continue
        prompt = make_prompt(number)
        tokens = encode(tokenizer, prompt)
        temperature = random.Random(f"temperature {number}").choices(TEMPERATURES, SHARES)[0]
        if 0 < len(tokens) <= LONGEST_PROMPT:
            yield Answer(number, prompt, temperature, tokens, len(tokens))


def encode(tokenizer: Any, prompt: Prompt) -> list[int]:
    """Token ids of a prompt, in the chat template where it belongs in one."""
    text = prompt.text
    if prompt.is_chat:
        message = [{"role": "user", "content": text}]
        text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    return ids


def main() -> None:
    """Generate until every prompt is answered."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", type=Path, help="checkpoint folder of the target")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the shards")
    parser.add_argument("--prompts", type=int, default=4000)
    parser.add_argument("--rows", type=int, default=96, help="answers written together")
    parser.add_argument("--worker", default="0/1", help="which share of the prompts, as i/n")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(arguments.threads)
    worker, workers = map(int, arguments.worker.split("/"))

    folder: Path = arguments.output
    names = [name for name in shard_names(folder) if name.startswith("chat-")]
    done = {text.number for text in read_shards(folder, names)}
    tokenizer: Any = AutoTokenizer.from_pretrained(arguments.target)
    slots = LONGEST_PROMPT + LONGEST_ANSWER
    dtype = getattr(torch, arguments.dtype)
    teacher = Teacher(arguments.target, arguments.rows, slots, dtype)
    waiting = new_answers(tokenizer, iter(range(worker, arguments.prompts, workers)), done)
    writers = Writers(teacher, waiting, tokenizer.eos_token_id, seed=len(done) * workers + worker)
    finished: list[Text] = []
    began, written = time.monotonic(), 0
    for answer in writers.run():
        finished.append(answer.text())
        written += len(answer.tokens) - answer.start
        if len(finished) == TEXTS_PER_SHARD:
            write_shard(folder, f"chat-{finished[0].number:06d}", finished)
            finished = []
            _LOG.info("%d tokens, %.0f a second", written, written / (time.monotonic() - began))
    if finished:
        write_shard(folder, f"chat-{finished[0].number:06d}", finished)


if __name__ == "__main__":
    main()
