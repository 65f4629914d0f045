"""A bundle small enough to know by heart: its models are tables, its graphs are written by hand.

The law of the next token is a row of a random table, picked by the last token and by a hash of ALL
tokens before it. The hash is computed from the caches, so that a cache that was not filled, not
rolled back or shared between rows changes the output. The graphs honour the full contract, in both
fusions and with both rules, and `ToyModel.next_logits` says in NumPy what they must compute.
`top_k`, `top_p` and `min_p` are inputs that these graphs do not read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from spec_compile.graph_contract import required_graphs
from spec_compile.manifest import BundleConfig, FileSpec, GraphSpec, Manifest, ModelSpec
from tests.helpers.graph_builder import GraphBuilder

VOCAB = 14
EOS, NAN_TOKEN = 0, 13
CONTEXTS = 7
# Pieces that overlap as stop strings do, and the bytes of two characters of several bytes.
PIECES: tuple[str | bytes, ...] = (
    "a",
    "b",
    "c",
    "ab",
    "bca",
    " ",
    b"\xc3",
    b"\xa9",
    b"\xe2",
    b"\x82",
    b"\xac",
    "aa",
    "cc",
)


@dataclass(frozen=True)
class ToyModel:
    """A table [CONTEXTS * VOCAB, VOCAB] of logits: row `hash * VOCAB + last token`."""

    table: NDArray[np.float32]

    def next_logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Logits [VOCAB] after `tokens`."""
        keys = sum(token * (slot % 5 + 1) for slot, token in enumerate(tokens))
        values = sum((token * 7 + 3) % 11 for token in tokens)
        row: NDArray[np.float32] = self.table[(keys + values) % CONTEXTS * VOCAB + tokens[-1]]
        return row

    def greedy(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """The first `num_tokens` tokens of greedy decoding; EOS is a token like any other."""
        tokens = list(prompt)
        for _ in range(num_tokens):
            tokens.append(int(self.next_logits(tokens).argmax()))
        return tokens[len(prompt) :]


@dataclass(frozen=True)
class Toy:
    """What to build.

    Args:
        draft: `self` (the target itself), `good` (its table with every third row redrawn),
            `random` (a table of its own), `wrong` (an argmax that is never the target's).
        with_nan: the law after NAN_TOKEN is NaN.
        drafter: `model`, or `prompt-lookup` (which has no draft).
        any_length: whether `verify` takes any number of draft tokens up to k.
    """

    fusion: str = "verify"
    k: int = 3
    draft: str = "good"
    acceptance: str = "rejection"
    max_length: int = 48
    batch_size: int = 4
    eos: tuple[int, ...] = (EOS,)
    with_tokenizer: bool = True
    with_nan: bool = False
    drafter: str = "model"
    any_length: bool = True
    target: ToyModel = field(init=False, repr=False, compare=False)
    draft_model: ToyModel = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(5)
        table = rng.normal(0, 2, (CONTEXTS * VOCAB, VOCAB)).astype(np.float32)
        table[:, EOS] -= 1.5  # so that outputs of some length exist
        other = rng.normal(0, 2, table.shape).astype(np.float32)
        if self.with_nan:
            table[NAN_TOKEN::VOCAB] = np.nan
        third = (np.arange(len(table)) % 3 == 0)[:, None]
        drafts = {"self": table, "random": other, "wrong": np.roll(table, 1, axis=1)}
        drafts["good"] = np.where(third, other, table)
        object.__setattr__(self, "target", ToyModel(table))
        object.__setattr__(self, "draft_model", ToyModel(drafts[self.draft]))

    @property
    def draft_samples(self) -> bool:
        """Whether the draft has laws, which the target is given."""
        return self.acceptance not in ("greedy", "match")


def write_toy_bundle(toy: Toy, folder: Path) -> Path:
    """Write the bundle of `toy` into the new folder `folder` and return it."""
    folder.mkdir(parents=True)
    names = required_graphs(toy.fusion, toy.drafter)
    build = {"draft": _draft, "verify": _verify, "step": _step, "target": _plain}
    graphs = {name: build[name](toy, folder / f"{name}.onnx") for name in names}
    if toy.with_tokenizer:
        toy_tokenizer().save(str(folder / "tokenizer.json"))
        template = "{% for m in messages %}<eos>{{ m.content }} {% endfor %}"
        (folder / "chat_template.jinja").write_text(template)
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>"}))
    write_manifest(toy, graphs, folder)
    return folder


def write_manifest(toy: Toy, graphs: dict[str, GraphSpec], folder: Path) -> None:
    """Write `manifest.json` over the files that `folder` holds."""
    model = ModelSpec("toy", "Table", "apache-2.0", 1, CONTEXTS * VOCAB * VOCAB)
    config = BundleConfig(
        num_speculative_tokens=toy.k,
        acceptance=toy.acceptance,
        exact=True,
        fusion=toy.fusion,
        backend="onnxruntime",
        dtype="float32",
        max_length=toy.max_length,
        batch_size=toy.batch_size,
        num_drafts=1,
        drafter=toy.drafter,
        prompt_lookup_min=None if toy.drafter == "model" else 1,
        prompt_lookup_max=None if toy.drafter == "model" else 3,
    )
    manifest = Manifest(
        config=config,
        vocab_size=VOCAB,
        eos_token_ids=toy.eos,
        bos_token_id=None,
        models={"target": model} | ({"draft": model} if toy.drafter == "model" else {}),
        graphs=graphs,
        files={path.name: file_spec(path) for path in sorted(folder.iterdir())},
        created_by={"spec_compile": "0.1.0"},
    )
    (folder / "manifest.json").write_text(manifest.to_json())


def toy_tokenizer() -> Tokenizer:
    """Byte-level: id 0 is `<eos>`, id i the piece PIECES[i - 1]."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    vocab = {"<eos>": EOS}
    for number, piece in enumerate(PIECES):
        vocab[_byte_level(piece if isinstance(piece, bytes) else piece.encode())] = number + 1
    tokenizer = Tokenizer(models.BPE(vocab, merges=[]))
    tokenizer.pre_tokenizer = byte_level
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    return tokenizer


def _byte_level(raw: bytes) -> str:
    """The printable spelling that byte-level tokenizers give to bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    spelling = {byte: chr(byte) for byte in printable}
    spelling |= {byte: chr(256 + number) for number, byte in enumerate(rest)}
    return "".join(spelling[byte] for byte in raw)


def file_spec(path: Path) -> FileSpec:
    """Size and hash of a file."""
    data = path.read_bytes()
    return FileSpec(hashlib.sha256(data).hexdigest(), len(data))


class _ToyGraph(GraphBuilder):
    """The inputs that every graph has, and the pieces that the graphs are made of."""

    def __init__(self, toy: Toy, num_uniforms: int) -> None:
        super().__init__()
        self.toy, self.slots = toy, toy.max_length + toy.k
        self.block: int | str = 1  # tokens that a round can emit
        self.slot_sums: dict[str, str] = {}  # model -> [B, slots]
        self.tokens = self.input("tokens", "int64", ("B", "T"))
        self.num_new = self.input("num_new", "int64", ("B",))
        self.lengths = self.input("lengths", "int64", ("B",))
        self.width = self.Slice(self.Shape(self.tokens), self.const([1]), self.const([2]))
        if num_uniforms and toy.acceptance != "greedy":
            self.temperature = self.input("temperature", "float32", ("B",))
            self.input("top_k", "int64", ("B",))
            self.input("top_p", "float32", ("B",))
            self.input("min_p", "float32", ("B",))
            self.uniforms = self.input("uniforms", "float32", ("B", num_uniforms))

    def column(self, value: str, first: int, last: int, axis: int = 1) -> str:
        return self.Slice(value, self.const([first]), self.const([last]), self.const([axis]))

    def unsqueeze(self, value: str, *axes: int) -> str:
        return self.Unsqueeze(value, self.const(axes))

    def arange(self, length: str) -> str:
        """0, 1, .. as [1, length]; `length` is [1]."""
        scalar = self.Squeeze(length)
        return self.unsqueeze(self.Range(self.const(0), scalar, self.const(1)), 0)

    def read_caches(self, prefix: str) -> None:
        """Make the caches of one model inputs, and sum up what each slot adds to the hash."""
        keys, values = (
            self.input(f"{prefix}{kind}_cache.0", "float32", ("B", 1, self.slots, 1))
            for kind in ("key", "value")
        )
        weights = self.const(np.arange(self.slots) % 5 + 1, "float32")
        keys, values = (self.Squeeze(cache, self.const([1, 3])) for cache in (keys, values))
        added = self.Add(self.Mul(keys, weights), values)
        self.slot_sums[prefix] = self.Cast(added, to=7)

    def write_caches(self, prefix: str, tokens: str) -> None:
        """Write tokens [B, N] behind `lengths`, once per graph, so that it happens in place."""
        for kind, value in (("key", tokens), ("value", self.hashed(tokens))):
            name = f"{prefix}{kind}_cache.0"
            update = self.unsqueeze(self.Cast(value, to=1), 1, 3)
            present = self.TensorScatter(name, update, self.lengths, name=f"next_{name}", axis=2)
            self.output(present, f"next_{name}", "float32", ("B", 1, self.slots, 1), name)

    def hashed(self, tokens: str) -> str:
        """What the value cache holds of tokens."""
        return self.Mod(self.Add(self.Mul(tokens, self.const(7)), self.const(3)), self.const(11))

    def forward(self, model: ToyModel, prefix: str, tokens: str, lengths: str) -> str:
        """Logits [B, N, V] after each of tokens [B, N], which stand behind `lengths` others."""
        count = self.Slice(self.Shape(tokens), self.const([1]), self.const([2]))
        slots = self.Add(self.unsqueeze(lengths, 1), self.arange(count))
        weights = self.Gather(self.const(np.arange(self.slots) % 5 + 1), slots)
        added = self.Add(self.Mul(tokens, weights), self.hashed(tokens))
        sums = self.ScatterElements(self.slot_sums[prefix], slots, added, axis=1)
        self.slot_sums[prefix] = sums
        context = self.GatherElements(self.CumSum(sums, self.const(1)), slots, axis=1)
        row = self.Mul(self.Mod(context, self.const(CONTEXTS)), self.const(VOCAB))
        return self.Gather(self.const(model.table, "float32"), self.Add(row, tokens))

    def size(self, value: str, axis: int) -> str:
        """Extent of an axis, as [1]."""
        return self.Slice(self.Shape(value), self.const([axis]), self.const([axis + 1]))

    def after(self, count: str) -> str:
        """`count` + 1."""
        return self.Add(count, self.const([1]))

    def span(self, value: str, first: str, last: str) -> str:
        """Columns first .. last - 1; both are [1]."""
        return self.Slice(value, first, last, self.const([1]))

    def append_drafts(self, drafts: str) -> str:
        """`tokens` widened, with drafts [B, J] right behind each row's `num_new`."""
        count = self.size(drafts, 1)
        padding = self.Concat(self.const([0, 0, 0]), count, axis=0)
        slots = self.Add(self.unsqueeze(self.num_new, 1), self.arange(count))
        readable = self.Max(drafts, self.const(0))
        return self.ScatterElements(self.Pad(self.tokens, padding), slots, readable, axis=1)

    def rows(self, values: str, first: str, count: str) -> str:
        """Rows `first`.. `first` + count - 1 of values [B, N, V], per batch row; first is [B]."""
        offsets = self.Add(self.unsqueeze(first, 1), self.arange(count))
        offsets = self.Max(offsets, self.const(0))
        index = self.Expand(self.unsqueeze(offsets, 2), self.const([1, 1, VOCAB]))
        return self.GatherElements(values, index, axis=1)

    def law(self, logits: str) -> str:
        """Probabilities [B, N, V]: softmax at the temperature, one-hot at temperature 0."""
        temperature = self.unsqueeze(self.temperature, 1, 2)
        greedy = self.Equal(temperature, self.const(0, "float32"))
        divisor = self.Where(greedy, self.const(1, "float32"), temperature)
        soft = self.Softmax(self.Div(logits, divisor), axis=-1)
        best = self.ArgMax(logits, axis=-1, keepdims=0)
        hot = self.OneHot(best, self.const(VOCAB), self.const([0, 1], "float32"))
        return self.Where(greedy, hot, soft)

    def inverse_cdf(self, weights: str, uniform: str) -> str:
        """Token ids [B] from weights [B, V] and uniforms [B, 1]."""
        sums = self.CumSum(weights, self.const(1))
        reached = self.LessOrEqual(sums, self.Mul(self.column(sums, VOCAB - 1, VOCAB), uniform))
        counted = self.ReduceSum(self.Cast(reached, to=7), self.const([1]), keepdims=0)
        return self.Min(counted, self.const(VOCAB - 1))

    def propose(self, prefix: str) -> tuple[str, str]:
        """The draft loop: k tokens [B, k], and their laws [B, k, V] if the rule uses them."""
        self.read_caches(prefix)
        model = self.toy.draft_model
        greedy = not self.toy.draft_samples
        logits = self.forward(model, prefix, self.tokens, self.lengths)
        logits = self.rows(logits, self.Sub(self.num_new, self.const(1)), self.const([1]))
        length = self.Add(self.lengths, self.num_new)
        tokens, laws = [], []
        for step in range(self.toy.k):
            if greedy:
                token = self.ArgMax(logits, axis=-1, keepdims=0)
            else:
                laws.append(self.law(logits))
                weights = self.Squeeze(laws[-1], self.const([1]))
                uniform = self.column(self.uniforms, step, step + 1)
                token = self.unsqueeze(self.inverse_cdf(weights, uniform), 1)
            tokens.append(token)
            logits = self.forward(model, prefix, token, length)
            length = self.Add(length, self.const(1))
        drafts = self.Concat(*tokens, axis=1)
        # The last draft token is proposed but never read: the hole that a later call fills.
        self.write_caches(prefix, self.append_drafts(self.column(drafts, 0, self.toy.k - 1)))
        return drafts, self.Concat(*laws, axis=1) if laws else ""

    def verify(self, draft_tokens: str, draft_probs: str, first_uniform: int) -> None:
        """The target over T + J tokens, acceptance, and the outputs of the graph."""
        count = self.size(draft_tokens, 1)
        self.read_caches("")
        tokens = self.append_drafts(draft_tokens)
        self.write_caches("", tokens)
        logits = self.forward(self.toy.target, "", tokens, self.lengths)
        logits = self.rows(logits, self.Sub(self.num_new, self.const(1)), self.after(count))
        if self.toy.draft_samples:
            self._reject(logits, draft_tokens, draft_probs, first_uniform)
            return
        if self.toy.acceptance == "greedy":
            own = self.ArgMax(logits, axis=-1, keepdims=0)
        else:
            first = self.const([first_uniform])
            uniforms = self.span(self.uniforms, first, self.Add(first, self.after(count)))
            own = self._draw(self.law(logits), uniforms)
        rejected = self.Not(self.Equal(draft_tokens, self.span(own, self.const([0]), count)))
        self.emit(logits, own, self._leading(rejected))

    def _draw(self, laws: str, uniforms: str) -> str:
        """A token [B, N] of each of laws [B, N, V]."""
        sums = self.CumSum(laws, self.const(2))
        bars = self.Mul(self.column(sums, VOCAB - 1, VOCAB, 2), self.unsqueeze(uniforms, 2))
        counted = self.ReduceSum(
            self.Cast(self.LessOrEqual(sums, bars), to=7), self.const([2]), keepdims=0
        )
        return self.Min(counted, self.const(VOCAB - 1))

    def _reject(self, logits: str, drafts: str, draft_probs: str, first_uniform: int) -> None:
        count, zero = self.size(drafts, 1), self.const([0])
        target_probs = self.law(logits)
        index = self.unsqueeze(drafts, 2)
        draft_probs = self.span(draft_probs, zero, count)
        ours = self.Squeeze(self.GatherElements(draft_probs, index, axis=2), self.const([2]))
        head = self.span(target_probs, zero, count)
        theirs = self.Squeeze(self.GatherElements(head, index, axis=2), self.const([2]))
        first = self.const([first_uniform])
        last_uniform = self.Add(first, count)
        uniforms = self.span(self.uniforms, first, last_uniform)
        accepted = self._leading(self.GreaterOrEqual(self.Mul(uniforms, ours), theirs))
        padded = self.Pad(draft_probs, self.const([0, 0, 0, 0, 1, 0]))
        residual = self.Relu(self.Sub(target_probs, padded))
        one = self.const([1])
        weights = self.Squeeze(self.rows(residual, accepted, one), one)
        fallback = self.Squeeze(self.rows(target_probs, accepted, one), one)
        mass = self.ReduceSum(weights, one)
        weights = self.Where(self.Greater(mass, self.const(0, "float32")), weights, fallback)
        uniform = self.span(self.uniforms, last_uniform, self.after(last_uniform))
        last = self.unsqueeze(self.inverse_cdf(weights, uniform), 1)
        padded = self.Pad(drafts, self.const([0, 0, 0, 1]))
        here = self.Equal(self.arange(self.after(count)), self.unsqueeze(accepted, 1))
        self.emit(logits, self.Where(here, last, padded), accepted)

    def _leading(self, rejected: str) -> str:
        """How many of rejected [B, k] come before the first true one: [B]."""
        seen = self.CumSum(self.Cast(rejected, to=7), self.const(1))
        accepted = self.Cast(self.Equal(seen, self.const(0)), to=7)
        return self.ReduceSum(accepted, self.const([1]), keepdims=0)

    def emit(self, logits: str, tokens: str, accepted: str) -> None:
        """Outputs: `accepted` + 1 of tokens [B, J + 1], none where logits are NaN."""
        used = self.LessOrEqual(self.arange(self.size(tokens, 1)), self.unsqueeze(accepted, 1))
        bad = self.Cast(self.IsNaN(logits), to=7)
        sane = self.Equal(self.ReduceSum(bad, self.const([1, 2]), keepdims=0), self.const(0))
        emitted = self.Where(sane, self.Add(accepted, self.const(1)), self.const(0))
        shape = ("B", self.block)
        self.output(self.Where(used, tokens, self.const(-1)), "output_tokens", "int64", shape)
        self.output(emitted, "num_emitted", "int64", ("B",))


def _draft(toy: Toy, path: Path) -> GraphSpec:
    graph = _ToyGraph(toy, toy.k if toy.draft_samples else 0)
    tokens, probs = graph.propose("draft_")
    graph.output(tokens, "draft_tokens", "int64", ("B", toy.k))
    if probs:
        graph.output(probs, "draft_probs", "float32", ("B", toy.k, VOCAB))
    return graph.save(path)


def _verify(toy: Toy, path: Path) -> GraphSpec:
    graph = _ToyGraph(toy, toy.k + 1)
    length, graph.block = ("J", "J+1") if toy.any_length else (toy.k, toy.k + 1)
    tokens, probs = graph.input("draft_tokens", "int64", ("B", length)), ""
    if toy.draft_samples:
        probs = graph.input("draft_probs", "float32", ("B", toy.k, VOCAB))
    graph.verify(tokens, probs, 0)
    return graph.save(path)


def _step(toy: Toy, path: Path) -> GraphSpec:
    own = toy.k if toy.draft_samples else 0
    graph = _ToyGraph(toy, own + toy.k + 1)
    graph.block = toy.k + 1
    graph.verify(*graph.propose("draft_"), first_uniform=own)
    return graph.save(path)


def _plain(toy: Toy, path: Path) -> GraphSpec:
    graph = _ToyGraph(toy, 1)
    graph.block = 1
    graph.read_caches("")
    graph.write_caches("", graph.tokens)
    logits = graph.forward(toy.target, "", graph.tokens, graph.lengths)
    logits = graph.rows(logits, graph.Sub(graph.num_new, graph.const(1)), graph.const([1]))
    if toy.acceptance == "greedy":
        token = graph.ArgMax(logits, axis=-1, keepdims=0)
    else:
        weights = graph.Squeeze(graph.law(logits), graph.const([1]))
        token = graph.unsqueeze(graph.inverse_cdf(weights, graph.uniforms), 1)
    graph.emit(logits, token, graph.Mul(graph.num_new, graph.const(0)))
    graph.output(logits, "logits", "float32", ("B", 1, VOCAB))
    return graph.save(path)
