"""The snippets of docs/embedding.md run, one after the other."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spec_compile.runtime.requests import GenerationOptions
from spec_compile.runtime.row import FINISH_REASONS
from spec_compile.runtime.stats import GenerationStats
from tests.helpers.toy_bundle import Toy

ToyFolder = Callable[[Toy], Path]
PAGE = (Path(__file__).parents[2] / "docs" / "embedding.md").read_text(encoding="utf-8")


def test_snippets_run(
    toy_folder: ToyFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(toy_folder(Toy()).parent)
    scope: dict[str, Any] = {}
    snippets = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    for snippet in snippets:
        exec(snippet, scope)
    assert len(snippets) == 7
    assert scope["answer"].token_ids
    assert [one.token_ids for one in scope["served"]] == [one.token_ids for one in scope["answers"]]
    assert scope["streamed"].token_ids
    assert capsys.readouterr().out


def test_page_names_every_option_reason_and_statistic() -> None:
    names = [*GenerationOptions.__dataclass_fields__, *FINISH_REASONS]
    names += GenerationStats(1, (), 0.0).as_dict()
    assert [name for name in names if f"`{name}`" not in PAGE] == []
