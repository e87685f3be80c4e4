"""README.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
NAMED = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


def test_every_test_that_the_table_names_exists() -> None:
    named = NAMED.findall((HERE / "README.md").read_text())
    assert named
    assert not [f"{file}::{test}" for file, test in named if f"def {test}(" not in (HERE / file).read_text()]
