"""The JSON schemas that are published, closed: a field that they lack is an error."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

FOLDER = Path(__file__).parents[1] / "docs" / "schemas"


def assert_as_published(answer: object, name: str) -> None:
    """Assert that the answer has exactly the fields of a schema."""
    validator(name).validate(answer)


@cache
def validator(name: str, part: str = "") -> Draft202012Validator:
    """Return the validator of a file, or of one of its parts."""
    schema = _closed(json.loads((FOLDER / name).read_text()))
    Draft202012Validator.check_schema(schema)
    if part:
        schema = {"$ref": f"#/$defs/{part}", "$defs": schema["$defs"]}
    return Draft202012Validator(schema)


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict):
        closed["additionalProperties"] = False
    return closed
