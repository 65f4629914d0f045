"""`compile`: capture, pipeline, backend, bundle; the only file that knows all of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch
from transformers import PreTrainedModel

from spec_compile import __version__
from spec_compile.acceptance import RULES, Rule, SeveralDraftsRule, rule_for
from spec_compile.config import DEFAULT_MAX_LENGTH, PROMPT_LOOKUP, SpecConfig, config_for
from spec_compile.errors import ConfigError
from spec_compile.export.backend import BuildContext, backend
from spec_compile.export.bundle import describe_files, describe_graphs
from spec_compile.export.capture_models import capture_model, head_rows
from spec_compile.export.checkpoint import Checkpoint, load_model, open_checkpoint
from spec_compile.export.draft_models import check_draft, check_source_options, load_draft
from spec_compile.export.spec_drafter import SpecDrafter
from spec_compile.export.spec_drafter_graphs import capture_spec_drafter
from spec_compile.export.tokenizer_files import (
    TokenizerFiles,
    read_tokenizer,
    vocabulary_size,
)
from spec_compile.export.weight_names import name_weights_of
from spec_compile.manifest import MANIFEST_FILE, BundleConfig, Manifest, ModelSpec
from spec_compile.passes.base import Pass
from spec_compile.passes.instruments import Dump, Instrument, Verify
from spec_compile.passes.manager import PassManager
from spec_compile.passes.pipeline import build_pipeline
from spec_compile.program import Graph, Program
from spec_compile.staging import check_output, staged

Progress = Callable[[str], None]
"""Called with the name of each step as it begins."""

_READ, _CAPTURE, _PASS = "read checkpoints", "capture {}", "pass {}"
_BUILD, _WRITE = "build {} engines", "write bundle"
_TOOLS = ("torch", "transformers", "onnx", "onnxscript", "onnx-ir")


@dataclass(frozen=True)
class Pair:
    """A target and a draft that may speculate together; no draft for prompt lookup."""

    target: Checkpoint
    draft: Checkpoint | None
    tokenizer: TokenizerFiles


@dataclass(frozen=True)
class Captured:
    """The captured models of a pair, in one program.

    Args:
        program: the graphs `target` and `draft`.
        models: the models, whose weights the program shares.
        vocab_size: V.
        max_length: tokens a row may hold.
        draft_token_ids: the tokens that the draft may propose, ascending; None: all.
    """

    program: Program
    models: dict[str, PreTrainedModel | SpecDrafter]
    vocab_size: int
    max_length: int
    draft_token_ids: tuple[int, ...] | None = None


def compile(
    target: str,
    draft: str,
    output: str | os.PathLike[str],
    config: SpecConfig | None = None,
    *,
    rule: Rule | None = None,
    dump: str | os.PathLike[str] | None = None,
    verify_each: bool = False,
    progress: Progress | None = None,
    instruments: Sequence[Instrument] = (),
) -> Path:
    """Compile a pair of models into a bundle.

    Args:
        target: preset, local folder or hub id of the model whose law is kept.
        draft: the same for the model that proposes; `prompt-lookup` proposes from the text.
        output: folder to make; must not exist.
        config: what to compile for; None takes the defaults of this draft.
        rule: an acceptance rule of your own (docs/writing_a_rule.md) in place of the config's.
        dump: folder for the program after each pass that changed it.
        verify_each: check the program, and what each pass reports, after every pass.
        progress: told of each step; `steps` lists them.
        instruments: more that watch the passes.

    Returns:
        The bundle's folder.

    Raises:
        SpecCompileError: one clear line; nothing is left behind.
    """
    config, report = config_for(draft, config), progress or (lambda _: None)
    chosen = rule_for(config) if rule is None else own_rule(rule, config)
    folder = Path(output)
    check_output(folder)
    builder = backend(config.backend)
    report(_READ)
    pair = open_pair(target, draft)
    captured = capture_pair(pair, config, report)
    watchers = _watchers(instruments, dump, verify_each)
    program = run_pipeline(captured, config, watchers, report, chosen)
    with staged(folder) as staging:
        report(_BUILD.format(config.backend))
        files = builder.build(program, _build_context(captured, program, config), staging)
        report(_WRITE)
        pair.tokenizer.write(staging)
        manifest = Manifest(
            config=_bundle_config(config, captured, chosen),
            vocab_size=captured.vocab_size,
            eos_token_ids=_known(pair.target.eos_token_ids, captured.vocab_size),
            bos_token_id=next(iter(_known((pair.target.bos_token_id,), captured.vocab_size)), None),
            models={name: _model_spec(pair, captured, name) for name in captured.models},
            graphs=describe_graphs(program, files),
            files=describe_files(staging),
            created_by=_versions(),
            engine=builder.engine,
            decoder_start_ids=pair.target.decoder_start_ids,
        )
        (staging / MANIFEST_FILE).write_text(manifest.to_json(), encoding="utf-8")
    return folder


def own_rule(rule: Rule, config: SpecConfig) -> Rule:
    """`rule`, if a bundle can be made of it.

    Raises:
        ConfigError: it cannot.
    """
    if not isinstance(rule, Rule):
        raise ConfigError(f"rule={rule!r} is no acceptance rule; give an instance of a Rule")
    if rule.name in RULES:
        raise ConfigError(f"rule: {rule.name!r} is the name of another rule; choose one of its own")
    if not rule.samples:
        raise ConfigError(
            f"rule: {rule.name!r} has samples=False, which only rules of the package may have"
        )
    if config.drafter == PROMPT_LOOKUP:
        raise ConfigError(f"rule: {rule.name!r} needs a draft model, and prompt-lookup has none")
    if isinstance(rule, SeveralDraftsRule) != (config.num_drafts > 1):
        takes = "several drafts" if isinstance(rule, SeveralDraftsRule) else "one draft"
        raise ConfigError(f"rule: {rule.name!r} takes {takes} a round, not {config.num_drafts}")
    return rule


def steps(config: SpecConfig) -> list[str]:
    """Every step that `compile` reports, in order."""
    # Which passes there are does not depend on the sizes.
    passes = build_pipeline(config, vocab_size=1, max_length=config.num_speculative_tokens + 1)
    return [
        _READ,
        _CAPTURE.format("target"),
        *([_CAPTURE.format("draft")] if config.drafter == "model" else []),
        *(_PASS.format(each.name) for each in passes),
        _BUILD.format(config.backend),
        _WRITE,
    ]


def open_pair(target: str, draft: str) -> Pair:
    """Find the models and check that they speak one vocabulary.

    Raises:
        CheckpointError: a model is missing or damaged, or they do not fit each other.
    """
    first = open_checkpoint(target)
    second = open_checkpoint(draft) if draft != PROMPT_LOOKUP else None
    tokenizer = read_tokenizer(first)
    check_draft(first, second, tokenizer)
    return Pair(first, second, tokenizer)


def capture_pair(pair: Pair, config: SpecConfig, report: Progress = lambda _: None) -> Captured:
    """Load and capture the models, and prove each capture against its model.

    Raises:
        SpecCompileError: a model cannot be captured, or is too small for the wanted length.
    """
    check_source_options(pair.target, config)
    max_length = _max_length(pair, config)
    dtype = getattr(torch, config.dtype)
    # Both before the first capture: damaged weights are told in seconds.
    target = load_model(pair.target, dtype)
    models: dict[str, PreTrainedModel | SpecDrafter] = {"target": target}
    token_ids: tuple[int, ...] | None = None
    if pair.draft is not None:
        models["draft"], token_ids = load_draft(
            pair.draft, target, pair.tokenizer, config, pair.target.eos_token_ids
        )
    graphs: dict[str, Graph] = {}
    for name, model in models.items():
        report(_CAPTURE.format(name))
        if isinstance(model, SpecDrafter):
            graphs |= capture_spec_drafter(
                model,
                num_speculative_tokens=config.num_speculative_tokens,
                vocab_size=vocabulary_size(
                    pair.tokenizer, head_rows(graphs["target"]), model.sizes.vocab_size
                ),
                batch_size=config.batch_size,
                max_length=max_length,
            )
            continue
        graphs |= capture_model(
            name,
            model,
            max_length=max_length,
            # The last round may write all its draft tokens behind a row that is full.
            slots=max_length + config.num_drafts * config.num_speculative_tokens,
            batch_size=config.batch_size,
            tree=config.num_drafts > 1,
        )
    target_rows = head_rows(graphs["target"])
    drafter = models.get("draft")
    if isinstance(drafter, SpecDrafter):
        draft_rows = drafter.sizes.vocab_size
    else:
        draft_rows = head_rows(graphs.get("draft", graphs["target"]))
    vocab_size = vocabulary_size(pair.tokenizer, target_rows, draft_rows)
    named = Program(graphs, name_weights_of(models))
    return Captured(named, models, vocab_size, max_length, token_ids)


def run_pipeline(
    captured: Captured,
    config: SpecConfig,
    instruments: Sequence[Instrument] = (),
    report: Progress = lambda _: None,
    rule: Rule | None = None,
) -> Program:
    """The graphs of a bundle from captured models; `rule` is as in `build_pipeline`."""
    passes = build_pipeline(
        config,
        vocab_size=captured.vocab_size,
        max_length=captured.max_length,
        draft_token_ids=captured.draft_token_ids,
        rule=rule,
    )
    return PassManager(passes, [_Report(report), *instruments]).run(captured.program)


def _watchers(
    instruments: Sequence[Instrument], dump: str | os.PathLike[str] | None, verify_each: bool
) -> list[Instrument]:
    dumps = [Dump(Path(dump))] if dump is not None else []
    return [*instruments, *dumps, *([Verify()] if verify_each else [])]


class _Report(Instrument):
    def __init__(self, report: Progress) -> None:
        self.report = report

    def before(self, each: Pass, program: Program) -> None:
        self.report(_PASS.format(each.name))


def _max_length(pair: Pair, config: SpecConfig) -> int:
    checkpoints = {"target": pair.target} | ({"draft": pair.draft} if pair.draft else {})
    limits = [c.max_length for c in checkpoints.values() if c.max_length is not None]
    if config.max_length is None:
        wanted = min([DEFAULT_MAX_LENGTH, *limits])
    else:
        wanted = config.max_length
        for name, checkpoint in checkpoints.items():
            if checkpoint.max_length is not None and wanted > checkpoint.max_length:
                raise ConfigError(
                    f"max_length={wanted} is more than the {checkpoint.max_length} positions of "
                    f"the {name}, {checkpoint.source}"
                )
    if config.num_speculative_tokens >= wanted:
        raise ConfigError(
            f"num_speculative_tokens={config.num_speculative_tokens} must be smaller than the "
            f"{wanted} tokens that a row may hold"
        )
    return wanted


def _build_context(captured: Captured, program: Program, config: SpecConfig) -> BuildContext:
    return BuildContext(
        vocab_size=captured.vocab_size,
        weight_names=program.weight_names,
        max_length=captured.max_length,
        batch_size=config.batch_size,
        num_speculative_tokens=config.num_speculative_tokens,
        quantize=config.quantized_models,
        compute_capabilities=config.compute_capabilities,
    )


def _known(ids: Sequence[int | None], vocab_size: int) -> tuple[int, ...]:
    """The ids that exist: configurations sometimes name one of a larger model."""
    return tuple(index for index in ids if index is not None and 0 <= index < vocab_size)


def _bundle_config(config: SpecConfig, captured: Captured, rule: Rule) -> BundleConfig:
    lookup = config.drafter == PROMPT_LOOKUP
    beta, tau = config.specdec_settings if rule.name == "specdec" else (None, None)
    return BundleConfig(
        num_speculative_tokens=config.num_speculative_tokens,
        acceptance=rule.name,
        exact=rule.exact,
        fusion=config.fusion,
        backend=config.backend,
        dtype=config.dtype,
        max_length=captured.max_length,
        batch_size=config.batch_size,
        num_drafts=config.num_drafts,
        quantize=config.quantized_models.get("target"),
        quantize_draft=config.quantized_models.get("draft"),
        drafter=config.drafter,
        prompt_lookup_min=config.prompt_lookup_min if lookup else None,
        prompt_lookup_max=config.prompt_lookup_max if lookup else None,
        specdec_beta=beta,
        specdec_tau=tau,
    )


def _model_spec(pair: Pair, captured: Captured, name: str) -> ModelSpec:
    checkpoint: Checkpoint = getattr(pair, name)
    model = captured.models[name]
    keys = [s for s in captured.program.graphs[name].inputs if "key_cache." in s.name]
    return ModelSpec(
        source=checkpoint.name,
        architecture=type(model).__name__,
        license=checkpoint.license,
        num_layers=len(keys) or checkpoint.config.num_hidden_layers,
        num_parameters=sum(weight.numel() for weight in model.parameters()),
    )


def _versions() -> dict[str, str]:
    return {"spec_compile": __version__, **dict(_tool_versions())}


def _tool_versions() -> Iterator[tuple[str, str]]:
    for tool in _TOOLS:
        yield tool, metadata.version(tool)
