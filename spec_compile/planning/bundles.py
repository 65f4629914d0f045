"""Predictions for given bundles: each by the laws and the costs of its own pair and precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from spec_compile.errors import ConfigError
from spec_compile.planning.models import NOT_FORESEEN, Choice
from spec_compile.planning.predict import Prediction, law_source, measure, num_ticks
from spec_compile.planning.texts import Options
from spec_compile.runtime.api import Decoder


def predictable(decoders: Sequence[Decoder]) -> list[list[int]]:
    """Places of bundles that can be predicted, those of one pair and precision together.

    They are of fusion `verify`, their prompts are no source texts, their rules can be foreseen, and
    one of each group gives the draft's laws.
    """
    groups: dict[object, list[int]] = {}
    for place, decoder in enumerate(decoders):
        manifest = decoder.manifest
        config = manifest.config
        if config.fusion != "verify" or manifest.reads_source:
            continue
        if config.acceptance not in NOT_FORESEEN:
            groups.setdefault(weights_of(decoder), []).append(place)
    return [group for group in groups.values() if _gives_laws([decoders[i] for i in group])]


def weights_of(decoder: Decoder) -> object:
    """What two bundles of one pair and precision have in common."""
    manifest = decoder.manifest
    models = [(name, one.source, one.num_parameters) for name, one in manifest.models.items()]
    config = manifest.config
    return (tuple(sorted(models)), config.dtype, config.quantize, config.quantize_draft)


def predict_bundles(
    decoders: Sequence[Decoder],
    prompts: Sequence[Sequence[int]],
    options: Options,
    num_tokens: int,
    seed: int,
    tick: Callable[[], None] = lambda: None,
) -> list[Prediction | None]:
    """What each bundle is expected to do; None for those that cannot be predicted.

    Args:
        decoders: the bundles.
        prompts: token ids, each with room for `num_tokens` more.
        options: temperature, top-k, top-p and min-p.
        num_tokens: that each prompt is continued by.
        seed: of the texts.
        tick: told of each step; `num_steps` says how many there are at most.
    """
    found: list[Prediction | None] = [None] * len(decoders)
    for group, mine, wanted in _groups(decoders):
        sizes = [_size(decoder) for decoder in mine]
        distinct = list(dict.fromkeys(wanted))
        measured = measure(mine, prompts, options, distinct, sizes, num_tokens, seed, tick)
        for place, choice, size in zip(group, wanted, sizes, strict=True):
            found[place] = measured.predict(choice, size[0])
    return found


def num_steps(decoders: Sequence[Decoder], num_prompts: int) -> int:
    """How often `predict_bundles` calls its `tick` at most."""
    return sum(num_ticks(mine, num_prompts, wanted) for _, mine, wanted in _groups(decoders))


def _groups(
    decoders: Sequence[Decoder],
) -> Iterator[tuple[list[int], list[Decoder], list[Choice]]]:
    for group in predictable(decoders):
        mine = [decoders[place] for place in group]
        configs = [decoder.manifest.config for decoder in mine]
        yield group, mine, [Choice(one.acceptance, one.num_drafts) for one in configs]


def _gives_laws(decoders: Sequence[Decoder]) -> bool:
    try:
        law_source(decoders)
    except ConfigError:
        return False
    return True


def _size(decoder: Decoder) -> tuple[int, int]:
    config = decoder.manifest.config
    return config.num_speculative_tokens, config.num_drafts
