"""Train a draft on what `generate.py` stored, from the start or on from a checkpoint.

    python -m examples.distill_draft.train smollm2-135m-instruct data -o run --minutes 60

`run/best` is the best average so far by held-out acceptance, a compact draft for `--draft`;
`run/state.safetensors` is where the next call goes on. Data that arrives meanwhile is taken in.
End with `--cool 10`, minutes in which the learning rate falls to nothing.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from examples.demo_pair.optimizer import Optimizer
from examples.distill_draft.batches import (
    Batch,
    frequent_tokens,
    inverse_of,
    make_batch,
    shuffled,
    token_frequency,
)
from examples.distill_draft.measure import measure
from examples.distill_draft.model import SIZES, Draft
from examples.distill_draft.start import install
from examples.distill_draft.store import Text, read_shards, shard_names
from spec_compile.export.compact_draft import TOKEN_IDS

LABELS_PER_STEP = 1024
MATRIX_RATE, OTHER_RATE, WEIGHT_DECAY = 0.015, 0.003, 0.0
NUM_TOKENS = 8192
REJECTION_SHARE = 1.0
AVERAGED_STEPS = 60
LOWEST_ORDINARY_ID = 17  # below it are the control tokens of this family
STATE = "state.safetensors"
_LOG = logging.getLogger(__name__)


class Data:
    """Texts for training and held-out ones, read as shards appear."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seen = folder, set[str]()
        self.train: list[Text] = []
        self.held_out: list[Text] = []
        self.refresh()

    def refresh(self) -> None:
        """Take in new shards."""
        names = [name for name in shard_names(self.folder) if name not in self.seen]
        self.seen.update(names)
        for text in read_shards(self.folder, names):
            (self.held_out if text.is_held_out else self.train).append(text)


@dataclass
class Run:
    """A draft in training, its slow average, and where it stands."""

    draft: Draft
    average: dict[str, Tensor]
    optimizer: Optimizer
    steps: int = 0
    seconds: float = 0.0
    best: float = 0.0

    def step(self, batch: Batch, factor: float) -> float:
        """One update; the loss."""
        loss = loss_of(self.draft(batch.tokens, batch.rows, batch.places), batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step(factor)
        self.steps += 1
        share = 1 / min(self.steps, AVERAGED_STEPS)
        for name, weight in self.draft.named_parameters():
            self.average[name].lerp_(weight.detach(), share)
        return loss.item()

    def averaged(self) -> Draft:
        """A draft with the average weights."""
        copy = Draft(self.draft.embeddings, self.draft.token_ids, self.draft.sizes)
        copy.load_state_dict(self.average)
        return copy.train(False)

    def save(self, folder: Path) -> None:
        """Write what `open_run` goes on from."""
        state = {
            **_prefixed("draft.", self.draft.state_dict()),
            **_prefixed("average.", self.average),
            **_prefixed("optimizer.", self.optimizer.state()),
            TOKEN_IDS: self.draft.token_ids,
        }
        counts = {"steps": str(self.steps), "seconds": str(self.seconds), "best": str(self.best)}
        save_file({k: v.contiguous() for k, v in state.items()}, folder / ".state", counts)
        (folder / ".state").rename(folder / STATE)


def loss_of(logits: Tensor, batch: Batch) -> Tensor:
    """Cross entropy to the teacher's law, and the share of drafts that would be rejected."""
    logs = functional.pad(logits.log_softmax(dim=-1), (0, 1), value=-30.0)
    picked = logs.gather(1, batch.law_index)
    known = batch.law_index < logits.shape[1]
    cross_entropy = -(batch.law * picked * known).sum(dim=-1).mean()
    accepted = torch.minimum(batch.law, picked.exp()).sum(dim=-1).mean()
    return cross_entropy + REJECTION_SHARE * (1 - accepted)


def open_run(
    folder: Path,
    embeddings: Tensor,
    data: Data,
    eos: int,
    *,
    sizes: Mapping[str, Any] = SIZES,
    num_tokens: int = NUM_TOKENS,
) -> Run:
    """Go on with the run of `folder`, or begin one."""
    state, counts = _stored(folder / STATE)
    always = [*range(LOWEST_ORDINARY_ID), eos]
    token_ids = state.get(TOKEN_IDS)
    frequency = token_frequency(data.train, len(embeddings))
    if token_ids is None:
        token_ids = frequent_tokens(frequency, num_tokens, always)
    torch.manual_seed(0)
    draft = Draft(embeddings, token_ids, sizes)
    if state:
        draft.load_state_dict(_part("draft.", state))
    elif sizes == SIZES:
        install(draft, frequency)
    average = {name: weight.detach().clone() for name, weight in draft.named_parameters()}
    run = Run(draft, average, Optimizer(draft, MATRIX_RATE, OTHER_RATE, WEIGHT_DECAY))
    if state:
        run.average = _part("average.", state)
        run.optimizer.load_state(_part("optimizer.", state))
        run.steps, run.seconds = int(counts["steps"]), float(counts["seconds"])
        run.best = float(counts["best"])
    return run


def _stored(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    if not path.is_file():
        return {}, {}
    with safe_open(path, framework="pt") as file:
        names: list[str] = file.keys()
        return {name: file.get_tensor(name) for name in names}, file.metadata()


def _prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def _part(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def train(run: Run, data: Data, folder: Path, arguments: argparse.Namespace) -> None:
    """Train for the minutes that were asked for."""
    tokenizer = Tokenizer.from_file(str(arguments.target / "tokenizer.json"))
    inverse = inverse_of(run.draft.token_ids, len(run.draft.embeddings))
    began, before = time.monotonic(), run.seconds
    total, cool = 60 * arguments.minutes, 60 * arguments.cool
    checked, loss = 0.0, 0.0
    while True:
        data.refresh()
        for group in shuffled(data.train, LABELS_PER_STEP, run.steps):
            spent = time.monotonic() - began
            run.seconds = before + spent
            if spent - checked > 60 * arguments.check_minutes or spent > total:
                _check(run, data, folder, tokenizer, loss)
                checked = spent
            if spent > total:
                return
            factor = arguments.rate * min(1.0, (run.steps + 1) / 30)
            if cool:
                factor *= min(1.0, max(0.0, (total - spent) / cool))
            found = run.step(make_batch(group, inverse), factor)
            loss = found if loss == 0 else loss + (found - loss) / 30


def _check(run: Run, data: Data, folder: Path, tokenizer: Tokenizer, loss: float) -> None:
    figures = measure(run.averaged(), data.held_out)
    score = figures["all"]["acceptance"] + figures["all"]["agreement"]
    if score > run.best:
        run.best = score
        run.averaged().save(folder / "best", tokenizer)
    run.save(folder)
    about = {
        "steps": run.steps,
        "minutes": round(run.seconds / 60, 1),
        "labels": sum(len(text.law_ids) for text in data.train),
        "loss": round(loss, 4),
        **figures,
    }
    (folder / "figures.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    _LOG.info(json.dumps(about))


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", type=Path, help="checkpoint folder of the target")
    parser.add_argument("data", type=Path, help="folder that generate.py wrote")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the run")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--cool", type=float, default=0.0, help="last minutes, of falling rate")
    parser.add_argument("--check-minutes", type=float, default=4.0)
    parser.add_argument("--rate", type=float, default=1.0, help="factor on the learning rates")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(arguments.threads)
    arguments.output.mkdir(parents=True, exist_ok=True)
    weights = load_file(arguments.target / "model.safetensors")
    embeddings = weights["model.embed_tokens.weight"].float().clone()
    del weights
    config = json.loads((arguments.target / "config.json").read_text("utf-8"))
    data = Data(arguments.data)
    run = open_run(arguments.output, embeddings, data, config["eos_token_id"])
    train(run, data, arguments.output, arguments)


if __name__ == "__main__":
    main()
