"""Kinds of values in a request: each reads JSON, and says as a JSON Schema what it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from spec_compile.serving.problems import invalid, shown

Schema = dict[str, Any]


class Kind(Protocol):
    """A kind of value; `read` and `schema` agree."""

    def read(self, where: str, value: Any) -> Any:
        """The value as the server uses it.

        Raises:
            ApiError: it is not of this kind.
        """
        ...

    def schema(self) -> Schema:
        """What `read` takes."""
        ...


@dataclass(frozen=True)
class Whole:
    """A whole number of `least` to `most`; 2.0 is one, as JSON Schema has it."""

    least: int
    most: int

    def read(self, where: str, value: Any) -> int:
        """See `Kind.read`."""
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            value = self.least - 1
        if not self.least <= value <= self.most:
            raise invalid(f"{where} must be a whole number of {self.least} to {self.most}", where)
        return int(value)

    def schema(self) -> Schema:
        """See `Kind.schema`."""
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True)
class Real:
    """A number of `least` to `most`, either end left out where `above` or `below` says so."""

    least: float
    most: float
    above: bool = False
    below: bool = False

    def read(self, where: str, value: Any) -> float:
        """See `Kind.read`."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not self.least <= value <= self.most or self._at_open_end(value):
            raise invalid(f"{where} must be a number {self._wanted()}", where)
        return float(value)

    def schema(self) -> Schema:
        """See `Kind.schema`."""
        least = "exclusiveMinimum" if self.above else "minimum"
        most = "exclusiveMaximum" if self.below else "maximum"
        return {"type": "number", least: self.least, most: self.most}

    def _at_open_end(self, value: float) -> bool:
        return (self.above and value == self.least) or (self.below and value == self.most)

    def _wanted(self) -> str:
        low = "above" if self.above else "of at least"
        high = "below" if self.below else "at most"
        return f"{low} {self.least:g} and {high} {self.most:g}"


@dataclass(frozen=True)
class Flag:
    """True or false."""

    def read(self, where: str, value: Any) -> bool:
        """See `Kind.read`."""
        if not isinstance(value, bool):
            raise invalid(f"{where} must be true or false", where)
        return value

    def schema(self) -> Schema:
        """See `Kind.schema`."""
        return {"type": "boolean"}


@dataclass(frozen=True)
class Text:
    """A string of Unicode text."""

    least: int = 0
    most: int | None = None

    def read(self, where: str, value: Any) -> str:
        """See `Kind.read`."""
        if not isinstance(value, str):
            raise invalid(f"{where} must be a string", where)
        if len(value) < self.least:
            raise invalid(f"{where} must not be empty", where)
        if self.most is not None and len(value) > self.most:
            raise invalid(f"{where} must have at most {self.most} characters", where)
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise invalid(f"{where} has half of a surrogate pair", where) from error
        return value

    def schema(self) -> Schema:
        """See `Kind.schema`."""
        schema: Schema = {"type": "string"}
        if self.least:
            schema["minLength"] = self.least
        if self.most is not None:
            schema["maxLength"] = self.most
        return schema


@dataclass(frozen=True)
class OneOf:
    """One of some strings."""

    values: Sequence[str]

    def read(self, where: str, value: Any) -> str:
        """See `Kind.read`."""
        if not isinstance(value, str) or value not in self.values:
            raise invalid(f"{where} must be one of {', '.join(self.values)}", where)
        return value

    def schema(self) -> Schema:
        """See `Kind.schema`."""
        return {"type": "string", "enum": list(self.values)}


@dataclass(frozen=True)
class Nothing:
    """A field that is not served, whose values here ask for nothing."""

    values: Sequence[Any]

    def read(self, where: str, value: Any) -> None:
        """See `Kind.read`."""
        if not any(_same(value, one) for one in self.values):
            raise unsupported(where)

    def schema(self) -> Schema:
        """See `Kind.schema`."""
        return {"enum": list(self.values)}


@dataclass(frozen=True)
class ListOf:
    """A list of things of one kind."""

    kind: Kind
    least: int = 0
    most: int | None = None

    def read(self, where: str, value: Any) -> list[Any]:
        """See `Kind.read`."""
        if not isinstance(value, list):
            raise invalid(f"{where} must be a list", where)
        if len(value) < self.least:
            raise invalid(f"{where} must have at least {self.least} elements", where)
        if self.most is not None and len(value) > self.most:
            raise invalid(f"{where} must have at most {self.most} elements", where)
        return [self.kind.read(f"{where}[{place}]", one) for place, one in enumerate(value)]

    def schema(self) -> Schema:
        """See `Kind.schema`."""
        schema: Schema = {"type": "array", "items": self.kind.schema()}
        if self.least:
            schema["minItems"] = self.least
        if self.most is not None:
            schema["maxItems"] = self.most
        return schema


@dataclass(frozen=True)
class TextOr:
    """Text, or a list."""

    text: Text
    other: ListOf

    def read(self, where: str, value: Any) -> str | list[Any]:
        """See `Kind.read`."""
        if isinstance(value, str):
            return self.text.read(where, value)
        if isinstance(value, list):
            return self.other.read(where, value)
        raise invalid(f"{where} must be a string or a list", where)

    def schema(self) -> Schema:
        """See `Kind.schema`."""
        return {"anyOf": [self.text.schema(), self.other.schema()]}


@dataclass(frozen=True)
class Field:
    """A field of an object.

    Args:
        kind: of its value.
        about: one line for who reads the document.
        required: whether it must be there; else null means that it is not given.
        default: what it is when it is not given; None leaves it out.
    """

    kind: Kind
    about: str
    required: bool = False
    default: Any = None

    def schema(self) -> Schema:
        """Of its value."""
        schema = self.kind.schema()
        if not self.required:
            schema = _or_null(schema)
        if self.default is not None:
            schema["default"] = self.default
        return {**schema, "description": self.about}


@dataclass(frozen=True)
class Object:
    """An object of named fields; every other name is refused.

    Args:
        fields: by name.
        idle: values of other names that ask for nothing.
    """

    fields: Mapping[str, Field]
    idle: Sequence[Any] = ()

    def read(self, where: str, value: Any) -> dict[str, Any]:
        """The fields that are given, and defaults; see `Kind.read`."""
        if not isinstance(value, dict):
            raise invalid(f"{where or 'the body'} must be an object", where or None)
        for name, one in value.items():
            if name not in self.fields and not any(_same(one, idle) for idle in self.idle):
                raise unsupported(_inside(where, name))
        found = {}
        for name, field in self.fields.items():
            one = value.get(name)
            if one is None and field.required:
                raise invalid(f"{_inside(where, name)} is missing", _inside(where, name))
            if one is not None:
                found[name] = field.kind.read(_inside(where, name), one)
            elif field.default is not None:
                found[name] = field.default
        return found

    def schema(self) -> Schema:
        """See `Kind.schema`."""
        return {
            "type": "object",
            "properties": {name: field.schema() for name, field in self.fields.items()},
            "required": [name for name, field in self.fields.items() if field.required],
            "additionalProperties": {"enum": list(self.idle)} if self.idle else False,
        }


def unsupported(where: str) -> Exception:
    """The refusal of a field that is not served, by name."""
    return invalid(f"the field {shown(where)} is not supported here", _short(where), "unsupported")


def _inside(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _short(where: str) -> str:
    return where if len(where) <= 60 else f"{where[:60]}..."


def _same(value: Any, other: Any) -> bool:
    """Equality of JSON: 0 is 0.0, and neither is false."""
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    return bool(value == other)


def _or_null(schema: Schema) -> Schema:
    if "enum" in schema:
        values = schema["enum"] if None in schema["enum"] else [*schema["enum"], None]
        return {"enum": values}
    if isinstance(schema.get("type"), str):
        return {**schema, "type": [schema["type"], "null"]}
    return {"anyOf": [*schema["anyOf"], {"type": "null"}]}
