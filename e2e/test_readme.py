"""README.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
NAMED = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


def test_every_test_that_the_table_names_exists() -> None:
    test_names = NAMED.findall((HERE / "README.md").read_text())
    assert test_names
    assert not [
        f"{file}::{test}" for file, test in test_names if f"def {test}(" not in (HERE / file).read_text()
    ]
