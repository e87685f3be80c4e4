"""`make turns` measures each change, on a small cluster."""

from __future__ import annotations

import pytest

from benchmarks import turns


def test_each_change_has_its_longest_turn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(turns, "HUGE", 8)
    turns.main(nodes=60, gangs=3, rounds=2)
    names = [line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines()]
    assert names == [*turns.CHANGES, *turns.WITH_VICTIMS]
