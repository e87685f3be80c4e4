"""Write the JSON schemas of what Muster prints for programs, and of the chart's `service.settings`.

    python -m checks.schemas        write docs/schemas and charts/muster/values.schema.json

A test fails if a file is not what the types of the code give.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from checks.answer_schemas import schemas
from muster.config import Config

REPOSITORY = Path(__file__).parents[1]
FOLDER = REPOSITORY / "docs" / "schemas"
CHART = REPOSITORY / "charts" / "muster" / "values.schema.json"
WIDTH = 118
NOT_SAID = {"title", "default", "format"}
"""Of each setting: its name again, what `muster config` prints, and `path`, which no validator knows."""


def main() -> int:
    """Write the files, and return the exit status."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text)
    CHART.write_text(chart(CHART.read_text()))
    return 0


def texts() -> dict[str, str]:
    """Return the text of each file of docs/schemas."""
    return {name: json.dumps(schema, indent=2) + "\n" for name, schema in schemas().items()}


def chart(written: str) -> str:
    """Return the chart's schema with the settings of the service put in. The rest is written by hand."""
    whole = json.loads(written)
    settings = _plain(Config.model_json_schema())
    sections = settings.pop("$defs")
    by_hand = {name: schema for name, schema in whole["$defs"].items() if not name[0].isupper()}
    whole["properties"]["service"]["properties"]["settings"] = settings
    whole["$defs"] = by_hand | sections
    return _laid_out(whole) + "\n"


def _plain(schema: Any, *, names: bool = False) -> Any:
    """Return the schema without what is not said of a setting. `names`: its keys are names of settings."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if isinstance(schema, str):
        return " ".join(schema.split())  # a docstring may have several lines
    if not isinstance(schema, dict):
        return schema
    fields = {key: value for key, value in schema.items() if names or key not in NOT_SAID}
    return {
        key: _plain(value, names=key in {"properties", "$defs"} and not names)
        for key, value in fields.items()
    }


def _laid_out(value: Any, before: int = 0, depth: int = 0) -> str:
    """Return JSON in which all that fits a line stands on one. `before`: what stands there already."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or before + len(line) <= WIDTH:
        return line
    margin = "  " * (depth + 1)
    if isinstance(value, list):
        parts = [margin + _laid_out(item, len(margin), depth + 1) for item in value]
    else:
        heads = [f"{margin}{json.dumps(key)}: " for key in value]
        items = zip(heads, value.values(), strict=True)
        parts = [head + _laid_out(item, len(head) + 1, depth + 1) for head, item in items]
    opening, closing = "[]" if isinstance(value, list) else "{}"
    return f"{opening}\n" + ",\n".join(parts) + f"\n{'  ' * depth}{closing}"


if __name__ == "__main__":
    sys.exit(main())
