"""The package's description: versions, extras and constraints that fit each other."""

from __future__ import annotations

import importlib
import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import spec_compile

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
PINNED_EXTRAS = ("compile", "cpu", "serve", "tensorrt-rtx", "bench", "dev")


def constraints() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(p.name): Version(next(iter(p.specifier)).version) for p in pins}


def test_version_is_said_once() -> None:
    assert spec_compile.__version__ == PROJECT["version"] == metadata.version("spec-compile")
    assert f"{PROJECT['version']}]" in (ROOT / "CHANGELOG.md").read_text()


def test_constraints_are_exact_pins() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [line for line in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    assert len(constraints()) == len(pins)


@pytest.mark.parametrize("extra", PINNED_EXTRAS)
def test_constraints_pin_every_requirement(extra: str) -> None:
    pins = constraints()
    for requirement in map(Requirement, [*PROJECT["dependencies"], *EXTRAS[extra]]):
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin is not None, f"constraints.txt lacks {requirement.name}"
        assert requirement.specifier.contains(pin), f"{requirement} does not admit {pin}"


def test_constraints_pin_what_the_requirements_pull_in() -> None:
    pins = constraints()
    pulled = [
        requirement
        for name in pins
        if name in installed_names()
        for requirement in map(Requirement, metadata.requires(name) or [])
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    ]
    names = {canonicalize_name(requirement.name) for requirement in pulled}
    assert {name for name in names & installed_names() if name not in pins} == set()


def installed_names() -> set[str]:
    return {canonicalize_name(found.name) for found in metadata.distributions()}


def test_command_resolves() -> None:
    module, function = PROJECT["scripts"]["spec-compile"].split(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_runtime_requirements_hold_no_compiler() -> None:
    light = {Requirement(r).name for r in [*PROJECT["dependencies"], *EXTRAS["cpu"]]}
    assert light.isdisjoint({Requirement(r).name for r in EXTRAS["compile"]})


@pytest.mark.parametrize("name", ["main", "tests"])
def test_readme_marks_the_commands_that_are_checked(name: str) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(rf"<!-- command: {name} -->\s*```\w*\n(.+?)\n```", readme, re.DOTALL)
    assert block is not None
    assert "-c constraints.txt" in block.group(1)
