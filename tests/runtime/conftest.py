"""Toy bundles, built once per session and loaded with the real engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from spec_compile.runtime.api import Decoder, load
from tests.helpers.toy_bundle import Toy, write_toy_bundle

ToyFolder = Callable[[Toy], Path]
LoadToy = Callable[[Toy], Decoder]


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> ToyFolder:
    """`toy_folder(toy)`: the bundle of `toy`; do not change it."""

    @cache
    def build(toy: Toy) -> Path:
        return write_toy_bundle(toy, tmp_path_factory.mktemp("toy") / "bundle")

    return build


@pytest.fixture(scope="session")
def load_toy(toy_folder: ToyFolder) -> LoadToy:
    """`load_toy(toy)`: the decoder of `toy`'s bundle, on one thread."""

    @cache
    def open_once(folder: Path) -> Decoder:
        return load(folder, num_threads=1)

    return lambda toy: open_once(toy_folder(toy))
