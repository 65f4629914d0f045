"""From the types of bodies to JSON Schemas."""

from __future__ import annotations

import types
from typing import (
    Any,
    Literal,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from spec_compile.serving.kinds import Schema

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}


class Components:
    """Named schemas of a document, collected as they are referred to."""

    def __init__(self) -> None:
        self.schemas: dict[str, Schema] = {}

    def add(self, name: str, schema: Schema) -> Schema:
        """Name a schema, and return a reference to it."""
        self.schemas[name] = schema
        return {"$ref": f"#/components/schemas/{name}"}

    def of(self, hint: Any) -> Schema:
        """The schema of a type: of JSON's plain ones, literals, lists, unions and TypedDicts."""
        if is_typeddict(hint):
            if hint.__name__ not in self.schemas:
                self.schemas[hint.__name__] = {}  # found while it is being written
                self.schemas[hint.__name__] = self._object(hint)
            return {"$ref": f"#/components/schemas/{hint.__name__}"}
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is Literal:
            return {"type": "string", "enum": list(arguments)}
        if origin is list:
            return {"type": "array", "items": self.of(arguments[0])}
        if origin in (Union, types.UnionType):
            return {"anyOf": [self.of(one) for one in arguments]}
        if origin is NotRequired:
            return self.of(arguments[0])
        return {"type": _PLAIN[hint]}

    def _object(self, kind: Any) -> Schema:
        hints = get_type_hints(kind, include_extras=True)
        return {
            "type": "object",
            "description": (kind.__doc__ or "").strip(),
            "properties": {name: self.of(hint) for name, hint in hints.items()},
            "required": [
                name
                for name, hint in hints.items()
                if name in kind.__required_keys__ and get_origin(hint) is not NotRequired
            ],
            "additionalProperties": False,
        }
