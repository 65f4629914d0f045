"""The errors that spec-compile raises on purpose: each message says what the user can do."""

from __future__ import annotations


class SpecCompileError(Exception):
    """Base of every error that spec-compile raises on purpose."""


class ConfigError(SpecCompileError):
    """An option has a value that no compile or generation can use."""


class CheckpointError(SpecCompileError):
    """A model or tokenizer on disk is missing, damaged, or not what was asked for."""


class CaptureError(SpecCompileError):
    """A model cannot be captured faithfully; the message names the feature."""


class PassError(SpecCompileError):
    """A graph pass failed; the message names the pass and those that ran before it."""


class PreconditionError(PassError):
    """A pass was given a program that it does not take."""


class PostconditionError(PassError):
    """A pass returned a program that breaks its own promise."""


class VerifierError(PassError):
    """A program breaks a rule that holds for every program."""


class BackendError(SpecCompileError):
    """A backend cannot build or run this program."""


class NativeCodeError(BackendError):
    """A bundle holds machine code for this process, and whoever opens it has not allowed that."""


class ArtifactError(SpecCompileError):
    """A bundle is missing, damaged, unsafe, or from a newer version."""


class GenerationError(SpecCompileError):
    """A request cannot be served: a prompt, an option or the model's own numbers."""


class PromptTooLongError(GenerationError):
    """A prompt has more tokens than the bundle holds."""


class QueueFullError(GenerationError):
    """A request was refused because too many wait already; it may be sent again later."""


class ClosedError(GenerationError):
    """A request was refused, or ended, because its decoder is closed."""
