"""The repository's layout: three links in the package, small documented files, one name each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LINKED = ("passes", "export", "runtime")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MODULES = sorted(
    file for folder in ("spec_compile", *LINKED) for file in (ROOT / folder).rglob("*.py")
)
ALL_FILES = sorted(
    [*MODULES, *(f for d in ("tests", "examples", "benchmarks") for f in (ROOT / d).rglob("*.py"))]
)


def short_name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def functions(file: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def imported_names(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


@pytest.mark.parametrize("name", LINKED)
def test_package_links_to_top_level_folder(name: str) -> None:
    link = ROOT / "spec_compile" / name
    assert link.is_symlink(), (
        f"spec_compile/{name} is not a link to ../{name}. On Windows, switch on developer mode and "
        "clone again with: git clone -c core.symlinks=true <address>"
    )
    assert link.readlink() == Path("..", name)
    assert (ROOT / name).is_dir()
    assert not (ROOT / name).is_symlink()
    assert (ROOT / name / "__init__.py").is_file()


@pytest.mark.parametrize("file", MODULES, ids=short_name)
def test_module_is_small_and_documented(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_FILE_LINES
    assert ast.get_docstring(ast.parse(text)), "the module needs a docstring"


@pytest.mark.parametrize("file", MODULES, ids=short_name)
def test_functions_are_short(file: Path) -> None:
    lengths = {f.name: (f.end_lineno or f.lineno) - f.lineno + 1 for f in functions(file)}
    too_long = {name: lines for name, lines in lengths.items() if lines > MAX_FUNCTION_LINES}
    assert not too_long, f"functions of more than {MAX_FUNCTION_LINES} lines: {too_long}"


@pytest.mark.parametrize("file", ALL_FILES, ids=short_name)
def test_imports_are_absolute_and_of_one_name(file: Path) -> None:
    wrong = [
        name
        for name in imported_names(file)
        if name.startswith(".") or name.split(".")[0] in LINKED
    ]
    assert not wrong, f"say spec_compile.<name>, not {wrong}"


def test_every_folder_of_modules_is_a_package() -> None:
    folders = {file.parent for file in MODULES}
    assert [f for f in folders if not (f / "__init__.py").is_file()] == []


def test_links_give_one_module_object() -> None:
    import spec_compile.passes
    import spec_compile.runtime

    for module in (spec_compile.passes, spec_compile.runtime):
        assert module.__name__.startswith("spec_compile.")
        assert module.__file__ is not None
        assert Path(module.__file__).parent.parent.resolve() in (ROOT, ROOT / "spec_compile")
