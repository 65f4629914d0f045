"""What docs/embedding.md says a slot takes is what the engine allocates for it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from numpy.typing import NDArray

from spec_compile.manifest import Manifest
from spec_compile.runtime.engines.onnxruntime import OnnxRuntimeEngine
from spec_compile.runtime.shared_decoder import SharedDecoder

PAGE = (Path(__file__).parents[2] / "docs" / "embedding.md").read_text(encoding="utf-8")


def documented_bytes(manifest: Manifest) -> int:
    """The page's own function."""
    snippets = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    (snippet,) = [one for one in snippets if "def bytes_per_slot" in one]
    scope: dict[str, Any] = {}
    exec(snippet[: snippet.index("\n\n\nprint(")], scope)
    num_bytes: int = scope["bytes_per_slot"](manifest)
    return num_bytes


@pytest.mark.parametrize("fusion", ["verify", "step"])
def test_a_slot_takes_what_the_page_says(
    fusion: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder: Path = request.getfixturevalue(f"demo_{fusion}_bundle")
    made: list[int] = []
    zeros = OnnxRuntimeEngine.zeros

    def counted(self: OnnxRuntimeEngine, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        buffer = zeros(self, shape, dtype)
        made.append(buffer.nbytes)
        return buffer

    monkeypatch.setattr(OnnxRuntimeEngine, "zeros", counted)
    sizes = []
    for num_slots in (1, 3):
        made.clear()
        with SharedDecoder.load(folder, num_slots=num_slots, num_threads=1) as shared:
            shared.generate("def ", max_new_tokens=4)
            sizes.append(sum(made))
            manifest = shared.manifest
    per_slot = (sizes[1] - sizes[0]) // 2
    # Beyond it: the draft tokens, the uniforms and other single numbers of a row.
    assert 0 <= per_slot - documented_bytes(manifest) < 1024
