"""The manifest's `engine`: what a runtime must know of compiled engines (stdlib only)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from spec_compile.json_fields import Fields, as_integer, as_text, breach

EMBEDDED = "embedded"
SHARED = "shared"
WRITTEN_AGAIN = ".again"
"""Ends the name of an engine's input for a cache as an earlier write of the round left it; before
that comes the name of the output of the later write. It is bound to the cache's own memory."""
_CAPABILITY = re.compile(r"[1-9][0-9]?\.[0-9]")


@dataclass(frozen=True)
class Sizes:
    """What one free size of an engine may be: at least, what it is tuned for, at most."""

    least: int
    best: int
    most: int


@dataclass(frozen=True)
class Profile:
    """The sizes that an optimization profile takes.

    Args:
        rows: of B.
        tokens: of T.
    """

    rows: Sizes
    tokens: Sizes

    def takes(self, rows: int, tokens: int) -> bool:
        """Whether a call of these sizes may use the profile."""
        fits = self.rows.least <= rows <= self.rows.most
        return fits and self.tokens.least <= tokens <= self.tokens.most


@dataclass(frozen=True)
class EngineSpec:
    """Engines of one package, for certain devices or processors.

    Args:
        package: the Python module that runs them.
        version: its version; engines do not outlive it.
        compute_capabilities: devices that the engines were built for, as "8.9"; empty leaves the
            choice to the package.
        weights: "embedded": every engine file holds the weights that it uses; "shared": one file
            beside them does.
        profiles: by graph, in the engine's order.
        host_features: what the machine must have that runs them: system, architecture and
            instruction sets, in the words of `spec_compile.host_cpu`.
    """

    package: str
    version: str
    compute_capabilities: tuple[str, ...]
    weights: str
    profiles: Mapping[str, tuple[Profile, ...]]
    host_features: tuple[str, ...] = ()

    def profile(self, graph: str, rows: int, tokens: int) -> int | None:
        """The narrowest profile of `graph` that takes these sizes, or None."""
        fitting = [
            (profile.tokens.most, index)
            for index, profile in enumerate(self.profiles.get(graph, ()))
            if profile.takes(rows, tokens)
        ]
        return min(fitting)[1] if fitting else None

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON; `read_engine_spec` of it equals this."""
        return {
            "package": self.package,
            "version": self.version,
            "compute_capabilities": list(self.compute_capabilities),
            "weights": self.weights,
            "profiles": {
                graph: [
                    {name: list(vars(sizes).values()) for name, sizes in vars(profile).items()}
                    for profile in profiles
                ]
                for graph, profiles in self.profiles.items()
            },
            **({"host_features": list(self.host_features)} if self.host_features else {}),
        }


def is_compute_capability(text: str) -> bool:
    """Whether `text` names one, as "8.9"."""
    return _CAPABILITY.fullmatch(text) is not None


def read_engine_spec(fields: Fields) -> EngineSpec:
    """Read the manifest's object `engine`.

    Raises:
        ArtifactError: a field breaks the format; the message names it.
    """
    spec = EngineSpec(
        package=fields.text("package"),
        version=fields.text("version"),
        compute_capabilities=tuple(_capabilities(fields)),
        weights=fields.text("weights"),
        profiles={
            graph: tuple(_profile(Fields(value, f"{where}[{i}]")) for i, value in _list(raw, where))
            for graph, raw, where in fields.items("profiles")
        },
        host_features=tuple(_host_features(fields)),
    )
    if spec.weights not in (EMBEDDED, SHARED):
        known = f"{EMBEDDED} and {SHARED}"
        raise breach(fields.path("weights"), f"is {spec.weights!r}; this version runs {known}")
    fields.finish()
    return spec


def _capabilities(fields: Fields) -> Iterator[str]:
    for value, where in fields.elements("compute_capabilities"):
        text = as_text(value, where)
        if not is_compute_capability(text):
            raise breach(where, 'must be a compute capability such as "8.9"')
        yield text


def _host_features(fields: Fields) -> Iterator[str]:
    if fields.has("host_features"):
        for value, where in fields.elements("host_features"):
            yield as_text(value, where)


def _profile(fields: Fields) -> Profile:
    profile = Profile(rows=_sizes(fields, "rows"), tokens=_sizes(fields, "tokens"))
    fields.finish()
    return profile


def _sizes(fields: Fields, name: str) -> Sizes:
    numbers = [as_integer(value, where) for value, where in fields.elements(name)]
    if len(numbers) != 3 or not 1 <= numbers[0] <= numbers[1] <= numbers[2]:
        raise breach(fields.path(name), "must be three numbers of at least 1 in rising order")
    return Sizes(*numbers)


def _list(raw: object, where: str) -> Iterator[tuple[int, Any]]:
    if not isinstance(raw, list):
        raise breach(where, "must be a list")
    return enumerate(raw)
