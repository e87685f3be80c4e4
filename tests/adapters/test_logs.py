"""Log lines: what users wrote in them is escaped and cut."""

from __future__ import annotations

import logging

import pytest
import structlog

from muster.adapters.telemetry import logs


@pytest.mark.parametrize("style", ["console", "json"])
def test_what_users_wrote_is_escaped_and_cut(capsys: pytest.CaptureFixture[str], style: str) -> None:
    before, root = structlog.get_config(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        logs.configure("info", style)
        evil = "\x1b[2J\n2026 [error] fake\ud800"
        structlog.get_logger("t").warning("it", pod=evil, problems=(evil,) * 100, large="x" * 1_000_000)
        logging.getLogger("other").warning("from %s", evil)
        lines = capsys.readouterr().err.splitlines()
    finally:
        structlog.configure(**before)
        logging.basicConfig(handlers=handlers, level=level, force=True)
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)
    assert len(lines[0]) < 2 * logs.MAX_CHARACTERS + logs.MAX_ITEMS * 100
