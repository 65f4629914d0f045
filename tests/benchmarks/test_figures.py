"""The scripts' figures come out for bundles of today, small enough to say nothing about speed."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.figures.graph_calls import GraphCall, verify_arrays, verify_outputs
from benchmarks.figures.rule_tables import Load, rule_speed, rule_tails
from spec_compile.checking.contexts import long_context
from spec_compile.config import SpecConfig
from spec_compile.driver import compile
from spec_compile.runtime.api import load


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demonstration pair with `rejection`, whose verify graph takes any number of tokens."""
    config = SpecConfig(4, "rejection", max_length=128)
    return compile("llama", "small", tmp_path_factory.mktemp("figures") / "bundle", config)


def test_a_verify_call_emits_what_its_rule_may(bundle: Path) -> None:
    decoder = load(bundle, num_threads=1)
    assert decoder.manifest.graphs["verify"].takes_any_length
    arrays = verify_arrays(decoder, long_context(decoder, 33, 0), 1)
    outputs = verify_outputs(decoder, arrays)
    path = decoder.bundle.path(decoder.manifest.graphs["verify"].file)
    GraphCall(path, path.parent, 1).bind(arrays, outputs)()
    drafted, emitted = arrays["draft_tokens"], outputs["output_tokens"]
    assert drafted.shape == (1, 4)
    assert emitted.shape == (1, 5)
    num_emitted = int(outputs["num_emitted"][0])
    assert 1 <= num_emitted <= 5
    np.testing.assert_array_equal(
        emitted[0, : num_emitted - 1], drafted[0, : num_emitted - 1], strict=False
    )


def test_tables_of_rules(bundle: Path) -> None:
    tails = rule_tails([bundle], valid=32, repeat=2, num_threads=1)
    assert tails.rows[0][:3] == ["rejection", 1, 4]
    assert math.isfinite(float(str(tails.rows[0][-1])))
    speed = rule_speed([bundle], Load(2, 12, [0.0, 1.0], 1))
    assert [row[:4] for row in speed.rows] == [
        ["rejection", 1, 4, "0"],
        ["rejection", 1, 4, "1"],
    ]
    assert all(1.0 <= float(str(row[4])) <= 5.0 for row in speed.rows)
