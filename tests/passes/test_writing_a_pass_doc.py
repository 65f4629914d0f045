"""The example of docs/writing_a_pass.md runs, and the page names what there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from spec_compile.passes import rewrite
from spec_compile.passes.base import Pass
from spec_compile.passes.instruments import Dump, Explain, Timing, Verify

PAGE = (Path(__file__).parents[2] / "docs" / "writing_a_pass.md").read_text(encoding="utf-8")


def test_the_example_runs() -> None:
    scope: dict[str, Any] = {"__name__": "writing_a_pass"}
    snippets = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    for snippet in snippets:
        exec(snippet, scope)
    assert len(snippets) == 2
    assert issubclass(scope["CancelTransposes"], Pass)


def test_the_page_names_what_a_pass_author_uses() -> None:
    helpers = [
        name
        for name, value in vars(rewrite).items()
        if callable(value) and getattr(value, "__module__", "") == rewrite.__name__
    ]
    names = [*helpers, *(kind.__name__ for kind in (Timing, Dump, Explain, Verify))]
    assert len(helpers) > 3
    assert [name for name in names if name not in PAGE] == []
