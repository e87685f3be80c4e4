"""Build the binaries of a cluster once, and find them again.

    python -m local_cluster.build --all          everything that can run here, with progress
    python -m local_cluster.build etcd shim      these, printing where they are

A build takes minutes on a small machine, so it shows that it lives: a line every 20 s where output
is captured, a running counter on a terminal. What is built lies outside of the checkout.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from local_cluster.modules import MODULES, ModuleError, folder
from local_cluster.places import cache_root
from local_cluster.real import packages
from local_cluster.real.support import why_not
from local_cluster.recipes import COMPONENTS, NODE, RECIPES, Recipe
from local_cluster.toolchain import ToolchainError, find_go, go_environment

REPORT_EVERY_S = 20.0
KEPT_SHIMS = 5
"""Builds of the shim that stay in the cache: each edit makes one, of about 70 MB."""


class BuildError(RuntimeError):
    """A binary could not be built."""


def binary(name: str, *, progress: TextIO | None = None) -> Path:
    """The path of a binary, built first when the cache does not have it.

    Safe to call from several processes at once: one builds, the others wait for it. `progress` is
    where lines go while it builds, standard error by default.
    """
    recipe = RECIPES.get(name)
    if recipe is None:
        raise BuildError(f"binary {name!r} is not known: one of {', '.join(RECIPES)}")
    if not (recipe.module / "go.mod").is_file():
        raise BuildError(
            f"{name}: no Go module at {recipe.module}; building needs a checkout of the whole repository"
        )
    folder = cache_root() / "bin" / recipe.key()
    built = folder / name
    if built.is_file():
        return built
    folder.parent.mkdir(parents=True, exist_ok=True)
    reporter = _Progress(recipe, progress or sys.stderr)
    with _one_builder(folder, reporter):
        if not built.is_file():  # another one may have built it while we waited
            _build(recipe, folder, reporter)
            _forget_old_shims(folder)
    return built


@contextlib.contextmanager
def _one_builder(folder: Path, reporter: _Progress) -> Iterator[None]:
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                reporter.tick("another process builds it, waiting")
                time.sleep(0.5)
        yield


def _build(recipe: Recipe, folder: Path, reporter: _Progress) -> None:
    """Run `go build` into a folder next to its place, and move it there when all went well."""
    try:
        go = find_go(recipe.go)
    except ToolchainError as problem:
        raise BuildError(f"{recipe.name}: {problem}") from problem
    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    log = partial / "build.log"
    argv = [str(go), "build", "-v", "-trimpath", "-o", str(partial / recipe.name)]
    argv += ["-tags", recipe.tags] if recipe.tags else []
    argv += [f"-modfile={recipe.modfile}"] if recipe.modfile != "go.mod" else []
    argv += ["-ldflags", f"-s -w {recipe.ldflags}".strip(), recipe.package]
    reporter.say(f"building with {go}, cold it takes about {recipe.cold_build} on two cores")
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                argv,
                cwd=recipe.module,
                env=go_environment(go),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            status = _wait(process, log, reporter)
        if status != 0:
            raise BuildError(_failure(recipe, status, log))
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    reporter.say(f"built in {reporter.elapsed_s:.0f} s: {folder / recipe.name}")


def _wait(process: subprocess.Popen[bytes], log: Path, reporter: _Progress) -> int:
    try:
        while True:
            try:
                return process.wait(timeout=0.5)
            except subprocess.TimeoutExpired:
                lines = log.read_bytes().splitlines()
                downloads = sum(line.startswith(b"go: downloading") for line in lines)
                reporter.tick(f"{len(lines) - downloads} packages compiled, {downloads} modules downloaded")
    except BaseException:  # Ctrl-C: leave no compiler behind
        process.terminate()
        process.wait()
        raise


def _failure(recipe: Recipe, status: int, log: Path) -> str:
    """What the compiler said, without the package names that `-v` prints."""
    lines = log.read_text(errors="replace").splitlines()
    messages = [line for line in lines if " " in line and not line.startswith("go: downloading")]
    tail = "\n".join(f"  {line}" for line in (messages or lines)[-25:])
    return f"{recipe.name} {recipe.version}: go build in {recipe.module} failed (exit {status}):\n{tail}"


def _forget_old_shims(newest: Path) -> None:
    if not newest.name.startswith("shim-"):
        return
    builds = [path for path in newest.parent.glob("shim-*") if (path / "shim").is_file()]
    for path in sorted(builds, key=lambda build: build.stat().st_mtime)[:-KEPT_SHIMS]:
        shutil.rmtree(path)
        (path.parent / f"{path.name}.lock").unlink(missing_ok=True)


class _Progress:
    """One line now and then; on a terminal, one line that changes in place."""

    def __init__(self, recipe: Recipe, out: TextIO) -> None:
        self._label = f"{recipe.name} {recipe.version}"
        self._out = out
        self._in_place = out.isatty()
        self._started = time.monotonic()
        self._reported = self._started

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def say(self, text: str) -> None:
        clear = "\r\x1b[K" if self._in_place else ""
        print(f"{clear}{self._label}: {text}", file=self._out, flush=True)

    def tick(self, text: str) -> None:
        line = f"{self._label}: {self.elapsed_s:.0f} s, {text}"
        if self._in_place:
            print(f"\r\x1b[K{line}", end="", file=self._out, flush=True)
        elif time.monotonic() - self._reported >= REPORT_EVERY_S:
            self._reported = time.monotonic()
            print(line, file=self._out, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Build the named binaries, print their paths, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m local_cluster.build", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(RECIPES)}")
    parser.add_argument("--all", action="store_true", help="all that can run here")
    options = parser.parse_args(arguments)
    names = list(RECIPES) if options.all else options.names or list(COMPONENTS)
    if options.all and (reason := why_not()):
        names = [name for name in RECIPES if name not in NODE]
        print(f"programs of real nodes are left out: {reason}", file=sys.stderr)
    try:
        for name in names:
            print(binary(name), flush=True)
        if set(NODE) <= set(names):
            print(packages.unpacked(), flush=True)
        for name in MODULES if options.all else ():
            print(folder(name), flush=True)  # tests read its files, and then they need no network
    except (BuildError, ModuleError, packages.PackagesError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
