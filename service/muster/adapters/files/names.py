"""Complete the names of objects with `metadata.generateName`, as the API server does at random."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count

from muster.adapters.files.sources import Document, Object
from muster.dialects.kinds.description import letters

_MOST = 58
"""The characters of generateName that the API server uses."""


def complete(documents: Iterable[Document], made_up: list[str]) -> Iterator[Document]:
    """Yield the documents, each with a name. Append the names that are made up to `made_up`.

    The end is made of letters that count up. So the same file gives the same names.
    """
    objects = list(documents)
    keys = {_key(document, _meta(document).get("name")) for document in objects}
    for document in objects:
        meta = _meta(document)
        prefix = meta.get("generateName")
        if meta.get("name") or not isinstance(prefix, str) or not prefix:
            yield document
            continue
        names = (prefix[:_MOST] + letters(number) for number in count())
        name = next(name for name in names if _key(document, name) not in keys)
        keys.add(_key(document, name))
        with_name = replace(document, value={**document.value, "metadata": {**meta, "name": name}})
        made_up.append(with_name.name)
        yield with_name


def _key(document: Document, name: object) -> tuple[str, str, str, str]:
    return (document.group, document.kind, str(_meta(document).get("namespace") or "default"), str(name))


def _meta(document: Document) -> Object:
    meta = document.value.get("metadata")
    return meta if isinstance(meta, dict) else {}
