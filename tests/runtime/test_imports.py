"""What is imported: nothing heavy by `import spec_compile`, nothing of the compiler ever."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.toy_bundle import Toy

ToyFolder = Callable[[Toy], Path]
COMPILER = ("torch", "transformers", "onnx", "onnxscript", "onnx_ir", "safetensors")
HEAVY = (*COMPILER, "numpy", "onnxruntime", "tokenizers", "jinja2")


def modules_after(code: str, *arguments: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after running `code`."""
    report = "\nimport sys; print('MODULES', *{name.split('.')[0] for name in sys.modules})"
    command = [sys.executable, "-c", code + report, *arguments]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return set(output.splitlines()[-1].split()[1:])


@pytest.mark.parametrize(
    "code",
    [
        "import spec_compile; assert spec_compile.SpecConfig and spec_compile.ArtifactError",
        "import spec_compile.cli; spec_compile.cli.build_parser()",
        "import spec_compile.manifest",
    ],
)
def test_importing_is_light(code: str) -> None:
    assert not modules_after(code) & set(HEAVY)


def test_a_whole_generation_needs_nothing_of_the_compiler(toy_folder: ToyFolder) -> None:
    code = (
        "import sys, spec_compile\n"
        "decoder = spec_compile.load(sys.argv[1], num_threads=1)\n"
        "assert decoder.generate('ab', temperature=1.0, seed=1, stop='cc', chat=True).token_ids\n"
        "assert list(decoder.stream('ab'))\n"
        "assert decoder.generate('ab', speculative=False).token_ids\n"
    )
    loaded = modules_after(code, str(toy_folder(Toy())))
    assert {"numpy", "onnxruntime", "tokenizers", "jinja2"} <= loaded
    assert not loaded & set(COMPILER)


def test_unknown_attribute() -> None:
    import spec_compile

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        spec_compile.nothing  # noqa: B018


def test_lazy_names_are_all_there() -> None:
    import spec_compile

    assert set(dir(spec_compile)) == set(spec_compile.__all__)
    for name in set(spec_compile.__all__) - {"compile"}:
        assert getattr(spec_compile, name) is not None
