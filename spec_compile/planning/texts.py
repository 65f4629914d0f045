"""Texts of the target's own, and what the models of the rules see at each of their positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec_compile.errors import GenerationError
from spec_compile.planning import single
from spec_compile.planning.graph_run import PLAIN, GraphRun, sampling_of
from spec_compile.planning.models import APPROXIMATE, Choice, model_of
from spec_compile.planning.observation import Chances, Law, Observation, RuleModel
from spec_compile.planning.transport import optimal_acceptance
from spec_compile.runtime.api import Decoder
from spec_compile.runtime.decoder import check_emitted, check_tokens
from spec_compile.runtime.sampling import process_logits, sample

Options = tuple[float, int, float, float]
"""Temperature, top-k, top-p, min-p."""
_NEXT_TO_NOTHING = 1e-10  # all tokens of a large vocabulary together: far below a standard error


class Text:
    """What was seen along one text.

    Args:
        models: by choice, what to keep at each position.
        counts: numbers of drafts of which to keep the ceiling.
    """

    def __init__(self, models: Mapping[Choice, RuleModel], counts: Sequence[int]) -> None:
        self._models, self.counts = models, tuple(counts)
        self._seen: dict[Choice, list[Chances]] = {choice: [] for choice in models}
        self._ceilings: list[list[float]] = []
        self.token_ids: list[int] = []

    def add(self, seen: Observation) -> None:
        """Take down one position."""
        for choice, model in self._models.items():
            self._seen[choice].append(model.observe(seen))
        laws = seen.draft, seen.target
        self._ceilings.append([optimal_acceptance(*laws, count) for count in self.counts])

    def survival(self, choice: Choice, num_speculative_tokens: int) -> Chances:
        """See `RuleModel.survival`."""
        observed = np.stack(self._seen[choice])
        return self._models[choice].survival(observed, num_speculative_tokens)

    @property
    def ceilings(self) -> NDArray[np.float64]:
        """The transport optimum of each position and number of drafts: [N, counts]."""
        return np.array(self._ceilings)


def write_texts(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    options: Options,
    wanted: Sequence[Choice],
    num_tokens: int,
    rng: np.random.Generator,
    tick: Any = lambda: None,
) -> list[Text]:
    """Let the target continue each prompt; EOS is a token like any other.

    Args:
        decoder: of a bundle whose draft graph gives its laws.
        prompts: token ids, each with room for `num_tokens` more.
        options: how to sample.
        wanted: rules to keep chances of: all exact, or one approximate one, whose own text it is.
        num_tokens: tokens of each text.
        rng: of the text, and of estimates that draw.
        tick: called after each text.
    """
    models = {choice: model_of(choice) for choice in wanted}
    counts = sorted({1, *(choice.num_drafts for choice in wanted)})
    approximate = next((choice.rule for choice in wanted if choice.rule in APPROXIMATE), None)
    texts = []
    for prompt in prompts:
        writer = _Writer(decoder, prompt, options, counts[-1])
        text = Text(models, counts)
        for _ in range(num_tokens):
            draft, target, ranked = writer.laws()
            law = _emitted_law(approximate, draft, target, int(ranked[0]))
            token = int(sample(law[None], np.array([rng.random()]))[0])
            text.token_ids.append(token)
            text.add(_compact(Observation(token, draft, target, ranked, rng)))
            writer.commit(token)
        texts.append(text)
        tick()
    return texts


class _Writer:
    """The two models side by side along one text, a token at a time."""

    def __init__(
        self, decoder: Decoder, prompt: Sequence[int], options: Options, most_drafts: int
    ) -> None:
        manifest = decoder.manifest
        self._target = GraphRun(decoder.engine, manifest, "target")
        self._draft = GraphRun(decoder.engine, manifest, "draft")
        self._vocab_size = manifest.vocab_size
        self._sampling, self._most_drafts = sampling_of(options), most_drafts
        self._unfiltered = options[1:] == PLAIN[1:]
        self._fresh, self._committed = list(prompt), 0

    def laws(self) -> tuple[Law, Law, NDArray[np.int64]]:
        """Draft law, target law, and the draft's best tokens, after all that is committed."""
        for graph in (self._target, self._draft):
            graph.run(self._fresh, self._committed)
        check_emitted(0, int(self._target.outputs["num_emitted"][0]), 1)
        self._committed += len(self._fresh)
        self._fresh = []
        # At temperature 1 without filters a law is as good as logits, -inf where it has no mass.
        plain = self._draft.outputs["draft_probs"].reshape(-1, self._vocab_size)[0]
        if not np.isfinite(plain).all():
            raise GenerationError(
                "the draft model's logits hold NaN or infinity; check its checkpoint"
            )
        with np.errstate(divide="ignore"):
            logits = np.log(plain)
        best = min(self._most_drafts, len(logits))
        ranked = np.argpartition(-logits, best - 1)[:best].astype(np.int64)
        ranked = ranked[np.lexsort((ranked, -logits[ranked]))]
        return self._law(logits), self._law(self._target.outputs["logits"][0, 0]), ranked

    def commit(self, token: int) -> None:
        """Append a token."""
        check_tokens([token], self._vocab_size)
        self._fresh = [token]

    def _law(self, logits: NDArray[np.float32]) -> Law:
        temperature = float(self._sampling.temperature[0])
        if temperature > 0 and self._unfiltered:
            law = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
        else:
            law = process_logits(logits[None, None], self._sampling)[0, 0].astype(np.float64)
        return np.asarray(law / law.sum())


def _compact(seen: Observation) -> Observation:
    """The same position over the tokens that matter: most of a vocabulary has next to no mass."""
    matters = (seen.draft > _NEXT_TO_NOTHING) | (seen.target > _NEXT_TO_NOTHING)
    matters[[seen.token, *seen.ranked]] = True
    kept = np.flatnonzero(matters)
    token, ranked = int(np.searchsorted(kept, seen.token)), np.searchsorted(kept, seen.ranked)
    laws = seen.draft[kept], seen.target[kept]
    return Observation(token, *laws, ranked.astype(np.int64), seen.rng)


def _emitted_law(rule: str | None, draft: Law, target: Law, best: int) -> Law:
    """The law of the next token of a text that `rule` writes; None: any exact rule."""
    if rule == "lenient":
        return single.lenient_law(draft, target)
    return single.typical_law(best, target) if rule == "typical" else target
