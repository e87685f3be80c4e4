"""JSON schemas of what Muster prints for programs, generated from the types of the code.

`python -m checks.schemas` writes them to docs/schemas. They leave objects open: a field may be added.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from muster.adapters.files.showing.report import PlaceReport
from muster.adapters.preflight.report import Preflight
from muster.adapters.status import Status
from muster.domain.reasons import Cause, cause_type, kinds_of

Schema = dict[str, Any]

DRAFT = "https://json-schema.org/draft/2020-12/schema"

_SPACE = re.compile(r"\s+")


def schemas() -> Mapping[str, Schema]:
    """Return the schemas by the names of their files."""
    return {"place-v1.json": _place(), "status-v1.json": _status(), "preflight-v1.json": _preflight()}


def _place() -> Schema:
    schema = _schema(PlaceReport, "The answer of muster place -o json")
    schema["$defs"]["Gang"]["properties"]["causes"]["items"] = _with_causes(schema)
    return schema


def _status() -> Schema:
    schema = _schema(Status, "The answer of muster status --json")
    schema["$defs"]["CauseView"]["properties"]["cause"] = _with_causes(schema)
    return schema


def _with_causes(schema: Schema) -> Schema:
    """Add a schema for each type of cause. Return the schema of "any cause"."""
    causes = _causes()
    schema["$defs"] |= causes | {"Cause": {"oneOf": [{"$ref": f"#/$defs/{name}"} for name in sorted(causes)]}}
    return {"$ref": "#/$defs/Cause"}


def _preflight() -> Schema:
    return _schema(Preflight, "The answer of muster preflight -o json")


def _schema(of: type, title: str) -> Schema:
    (reference,), parts = msgspec.json.schema_components((of,))
    name = reference["$ref"].rpartition("/")[2]
    root = parts.pop(name)
    plain: Schema = _plain({"$schema": DRAFT, **root, "title": title, "$defs": parts})
    return plain


def _causes() -> dict[str, Schema]:
    """Return a schema for each type of cause: its fields, and what `cause_json` adds."""
    types = dict(sorted(kinds_of(Cause).items()))
    _, parts = msgspec.json.schema_components(types.values())
    schemas = {}
    for name, cause_class in types.items():
        schema: Schema = _plain(parts[name])
        fields, required = schema["properties"], [*schema["properties"]]
        for word, amount_field, unit in (("unit", "resource", _UNIT), ("units", "resources", _UNITS)):
            if amount_field in fields:
                fields[word], required = unit, [*required, word]
        for field in fields.values():
            field.pop("default", None)  # all are always there
        schema["properties"] = {"type": {"const": cause_type(cause_class)}, **fields}
        schemas[name] = schema | {"title": cause_type(cause_class), "required": ["type", *required]}
    return schemas


_UNIT: Schema = {"enum": ["cpu_milli", "bytes", "count"]}
_UNITS: Schema = {"type": "array", "items": _UNIT}


def _plain(schema: Any) -> Any:
    """Return the schema with descriptions of one line."""
    if isinstance(schema, dict):
        return {
            key: _SPACE.sub(" ", value) if key == "description" and isinstance(value, str) else _plain(value)
            for key, value in schema.items()
        }
    return [_plain(item) for item in schema] if isinstance(schema, list) else schema
