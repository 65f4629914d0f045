"""What the manifest says of engines, and which options a backend takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spec_compile.config import DTYPES, SpecConfig
from spec_compile.engine_spec import EngineSpec, Profile, Sizes, read_engine_spec
from spec_compile.errors import ArtifactError, ConfigError
from spec_compile.json_fields import Fields

SPEC = EngineSpec(
    package="tensorrt_rtx",
    version="1.7.1.116",
    compute_capabilities=("8.9", "12.0"),
    weights="embedded",
    profiles={
        "verify": (
            Profile(Sizes(1, 1, 4), Sizes(1, 128, 256)),
            Profile(Sizes(1, 1, 4), Sizes(1, 1, 5)),
        )
    },
)


def test_it_survives_json() -> None:
    for_host = EngineSpec("torch", "2.13.0", (), "shared", {}, ("avx2", "linux"))
    for spec in (SPEC, for_host):
        assert read_engine_spec(Fields(spec.as_dict(), "engine")) == spec


@pytest.mark.parametrize(
    "rows,tokens,index",
    [(1, 1, 1), (4, 5, 1), (4, 6, 0), (1, 256, 0), (1, 257, None), (5, 1, None)],
)
def test_the_narrowest_profile_is_chosen(rows: int, tokens: int, index: int | None) -> None:
    assert SPEC.profile("verify", rows, tokens) == index
    assert SPEC.profile("draft", rows, tokens) is None


def breach_of(field: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda raw: raw.update({field: value})


@pytest.mark.parametrize(
    "edit",
    [
        breach_of("version", ""),
        breach_of("weights", "elsewhere"),
        breach_of("compute_capabilities", ["89"]),
        breach_of("compute_capabilities", "8.9"),
        breach_of("profiles", {"verify": {}}),
        breach_of("profiles", {"verify": [{"rows": [1, 2], "tokens": [1, 1, 1]}]}),
        breach_of("profiles", {"verify": [{"rows": [3, 2, 4], "tokens": [1, 1, 1]}]}),
        breach_of("profiles", {"verify": [{"rows": [0, 1, 1], "tokens": [1, 1, 1]}]}),
        breach_of("profiles", {"verify": [{"rows": [1, 1, 1]}]}),
        breach_of("host_features", "avx2"),
        breach_of("host_features", [2]),
        breach_of("surprise", 1),
    ],
)
def test_breaches_are_refused(edit: Callable[[dict[str, Any]], None]) -> None:
    raw = SPEC.as_dict()
    edit(raw)
    with pytest.raises(ArtifactError, match=r"manifest\.json: engine"):
        read_engine_spec(Fields(raw, "engine"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backend", ["tensorrt", "tensorrt-rtx"])
def test_types_of_tensorrt(backend: str, dtype: str) -> None:
    assert SpecConfig(backend=backend, dtype=dtype).dtype == dtype


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("backend", ["onnxruntime", "torch"])
def test_types_that_cpus_do_not_take(backend: str, dtype: str) -> None:
    with pytest.raises(ConfigError, match=rf"{dtype}.*backend='onnxruntime', quantize='int8'"):
        SpecConfig(backend=backend, dtype=dtype)


@pytest.mark.parametrize("option", ["quantize", "quantize_draft"])
@pytest.mark.parametrize("backend", ["tensorrt", "tensorrt-rtx"])
def test_block_wise_weights_are_onnx_runtime_s(backend: str, option: str) -> None:
    with pytest.raises(ConfigError, match=f"quantize is not supported by backend='{backend}'"):
        SpecConfig(backend=backend, **{option: "int4"})  # type: ignore[arg-type]
    assert SpecConfig(backend=backend, quantize_draft="none").quantized_models == {}


@pytest.mark.parametrize("backend", ["onnxruntime", "tensorrt"])
def test_only_tensorrt_rtx_builds_for_other_devices(backend: str) -> None:
    with pytest.raises(ConfigError, match="tensorrt-rtx"):
        SpecConfig(backend=backend, compute_capabilities=("8.9",))
    SpecConfig(backend="tensorrt-rtx", compute_capabilities=("8.9", "12.0"))


@pytest.mark.parametrize("text", ["89", "8", "sm89", "8.99", ""])
def test_what_is_no_compute_capability(text: str) -> None:
    with pytest.raises(ConfigError, match="compute_capabilities"):
        SpecConfig(backend="tensorrt-rtx", compute_capabilities=(text,))
