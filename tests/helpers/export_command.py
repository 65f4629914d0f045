"""Run `spec-compile export` in this process and look at what it says and what it leaves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from spec_compile.cli import main


@dataclass(frozen=True)
class ExportCommand:
    """`export` into the empty folder `parent`.

    Args:
        capsys: pytest's capture of this process's output.
        parent: where the output folder is made.
    """

    capsys: pytest.CaptureFixture[str]
    parent: Path

    @property
    def output(self) -> Path:
        """The folder that `export` is asked for."""
        return self.parent / "bundle"

    def run(self, target: object, draft: object, *arguments: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        self.capsys.readouterr()
        command = ["export", "--target", str(target), "--draft", str(draft)]
        code = main([*command, "-o", str(self.output), *arguments])
        captured = self.capsys.readouterr()
        return code, captured.out, captured.err

    def refusal(self, target: object, draft: object, *arguments: str, code: int = 1) -> str:
        """The one line that a failing export says; asserts that it leaves nothing behind."""
        before = sorted(self.parent.iterdir())
        actual, out, err = self.run(target, draft, *arguments)
        assert (actual, out) == (code, ""), err
        assert err.startswith("spec-compile: error: ")
        assert err.count("\n") == 1 and err.endswith("\n"), err
        assert sorted(self.parent.iterdir()) == before
        return err.removeprefix("spec-compile: error: ").removesuffix("\n")
