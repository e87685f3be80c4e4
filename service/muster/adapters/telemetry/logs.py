"""Set up structlog: JSON for machines, colours for a terminal. Standard loggers use it too."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from muster.domain.printable import printable

MAX_CHARACTERS = 2000
"""Largest number of characters of one text in a log line."""
MAX_ITEMS = 32
"""Largest number of items of one list in a log line."""


def escape(_: object, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape texts of users in a log line, and cut long texts. This is a structlog processor."""
    for key, value in line.items():
        line[key] = _escape(value)
    return line


def _escape(value: Any) -> Any:
    match value:
        case str():
            return printable(value, MAX_CHARACTERS)
        case list() | tuple() if all(isinstance(item, str) for item in value):
            return [_escape(item) for item in value[:MAX_ITEMS]]
        case _:
            return value


def configure(level: str, style: str) -> None:
    """Set up logging. `level`: debug, info, warning or error. `style`: json, console, or auto (console on a
    terminal)."""
    as_json = style == "json" or (style == "auto" and not sys.stderr.isatty())
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        escape,
    ]
    # Without the frames' locals, because rendering a snapshot takes longer than the shim's deadline.
    tracebacks = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    render: list[Any] = (
        [structlog.processors.ExceptionRenderer(tracebacks), structlog.processors.JSONRenderer()]
        if as_json
        else [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    )
    structlog.configure(
        processors=[*shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(number, logging.WARNING), force=True)
