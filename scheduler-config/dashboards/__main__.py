"""`python -m dashboards`: write each dashboard as JSON next to this file."""

from __future__ import annotations

from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards.operators import operators
from dashboards.teams import teams
from dashboards.traces import traces

FOLDER = Path(__file__).parent


def written() -> dict[str, str]:
    """Return name of file → content, for all dashboards."""
    encoder = JSONEncoder(sort_keys=True, indent=1)
    dashboards = {"operators": operators(), "teams": teams(), "traces": traces()}
    return {
        f"{name}.json": f"{encoder.encode(dashboard.build())}\n" for name, dashboard in dashboards.items()
    }


if __name__ == "__main__":
    for name, text in written().items():
        (FOLDER / name).write_text(text)
