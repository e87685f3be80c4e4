"""A browser is installed where that can be, and nothing fails where it can't."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

import pytest

from checks import browser
from checks.browser import CantInstall, main

APT = {"apt-get"}


class Machine:
    """What is on PATH; a command may bring more, or fail."""

    def __init__(self, programs: set[str], brings: set[str], fails: str = "") -> None:
        self.programs, self.brings, self.fails = set(programs), brings, fails
        self.ran: list[str] = []

    def which(self, name: str) -> str | None:
        return f"/usr/bin/{name}" if name in self.programs else None

    def run(self, command: Sequence[str]) -> None:
        self.ran.append(command[1])
        if command[1] == self.fails:
            raise CantInstall("apt-get update: Temporary failure resolving 'deb.debian.org'")
        self.programs |= self.brings if command[1] == "install" else set()


CASES: dict[str, tuple[Machine, int, list[str], str]] = {
    "there is one": (Machine({"google-chrome"}, set()), 1000, [], ""),
    "Debian, as root": (Machine(APT, {"chromium"}), 0, ["update", "install"], "no browser for the tests"),
    "not root": (Machine(APT, {"chromium"}), 1000, [], "skipped: apt-get needs root"),
    "no apt-get": (Machine(set(), set()), 0, [], "skipped: there is no apt-get"),
    "no network": (Machine(APT, set(), "update"), 0, ["update"], "Temporary failure resolving"),
    "a package without a browser": (Machine(APT, set()), 0, ["update", "install"], "installed no browser"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_browser_is_installed_where_it_can_be(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine, user, ran, says = CASES[name]
    monkeypatch.setattr(shutil, "which", machine.which)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert main(machine.run) == 0
    assert machine.ran == ran
    assert says in (printed := capsys.readouterr().out)
    assert bool(printed) == bool(says)


COMMANDS: dict[str, tuple[list[str], float, str]] = {
    "it fails": (["sh", "-c", "echo first >&2; echo last >&2; exit 100"], 300.0, "sh -c: last"),
    "it hangs": (["sleep", "1000"], 0.01, "sleep 1000 took more than 0.01 s"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_fails_or_hangs_says_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command, limit_s, says = COMMANDS[name]
    monkeypatch.setattr(browser, "LIMIT_S", limit_s)
    with pytest.raises(CantInstall, match=says):
        browser._run(command)
