"""Options that several benchmarks take."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

from muster.command_line import USAGE, Failed


def chosen(text: str, all_names: Collection[str], option: str) -> list[str]:
    """Return the comma-separated names of an option; all known names if it is empty.

    Raises:
        Failed: a name is not known.
    """
    names = [word.strip() for word in text.split(",") if word.strip()] or list(all_names)
    if unknown := [name for name in names if name not in all_names]:
        raise Failed(f"{option}: {', '.join(unknown)}: not one of {', '.join(all_names)}", USAGE)
    return names


@contextlib.contextmanager
def folder(path: Path | None, prefix: str) -> Iterator[Path]:
    """Yield the given folder, which is made if needed; without one, a folder that is deleted afterwards."""
    if path is not None:
        path.mkdir(parents=True, exist_ok=True)
        yield path
        return
    with tempfile.TemporaryDirectory(prefix=prefix) as temporary:
        yield Path(temporary)
