"""Read bytes into documents: files, folders and stdin; YAML of several documents, JSON, lists, matrices.

Sizes are limited before a text is parsed. Mistakes that YAML accepts are refused: duplicate keys, and
timestamps instead of text.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
import yaml

from muster.dialects.nodes import matrices
from muster.dialects.objects import NodeObject
from muster.domain.printable import printable

MAX_BYTES = 256 * 1024 * 1024
"""The largest size of one file."""
MAX_OBJECTS = 1_000_000
"""Largest number of objects of one file. With aliases, a small YAML file can have very many."""
MAX_DEPTH = 8
"""Largest nesting of lists."""
MAX_BITS = 1024
"""Largest number of bits of an integer. A longer hexadecimal number has more digits than Python prints."""
MAX_LEVELS = 500
"""Largest nesting of YAML. Objects of Kubernetes have about ten levels."""

CLUSTER_WIDE = frozenset({
    "ClusterTrainingRuntime", "Namespace", "Node", "PriorityClass", "RuntimeClass", "Topology",
})  # fmt: skip
"""Kinds that are read and have no namespace."""
STDIN = "-"
SUFFIXES = (".yaml", ".yml", ".json")

Object = dict[str, Any]


def object_at(value: object, *path: str) -> Object:
    """Return the object at this path; {} if there is none."""
    inner = field_at(value, *path)
    return inner if isinstance(inner, dict) else {}


def objects_at(value: object, *path: str) -> list[Object]:
    """Return the objects of the list at this path. Other values are left out, because the API server refuses
    them."""
    inner = field_at(value, *path)
    return [item for item in inner if isinstance(item, dict)] if isinstance(inner, list) else []


def field_at(value: object, *path: str) -> Any:
    """Return the field at this path; None if there is none."""
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


class Key(NamedTuple):
    """The identity of an object. The namespace is "" for objects of the whole cluster."""

    kind: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Document:
    """One object of a file. `place` is "document 3", or "document 1, item 4" of a list."""

    source: str
    place: str
    value: Object

    @property
    def kind(self) -> str:
        """The object's kind."""
        return str(self.value["kind"])

    @property
    def group(self) -> str:
        """The API group; "" for the core group."""
        version = str(self.value["apiVersion"])
        return version.rpartition("/")[0]

    @property
    def metadata(self) -> Object:
        """The object's metadata; {} if it has none."""
        return object_at(self.value, "metadata")

    @property
    def key(self) -> Key:
        """Kind, namespace and name."""
        namespace = str(self.metadata.get("namespace") or "default")
        return Key(self.kind, "" if self.kind in CLUSTER_WIDE else namespace, str(self.metadata.get("name")))

    @property
    def name(self) -> str:
        """Kind and name as users write them: "Pod default/x", "Node a"."""
        name, generated, namespace = (
            text[:253] if isinstance(text := self.metadata.get(field), str) else ""
            for field in ("name", "generateName", "namespace")
        )
        prefix = "" if self.kind in CLUSTER_WIDE else f"{namespace or 'default'}/"
        return f"{self.kind} {prefix}{name or generated or '(no name)'}"

    def error(self, problem: str) -> Malformed:
        """Return the problem with the place and name of this document."""
        return Malformed(self.source, f"{self.place}, {self.name}", problem)


def read(paths: Iterable[str], stdin: BinaryIO) -> list[Document | PrintedMatrix]:
    """Return all documents of these files, folders and stdin ("-"), in order, and the matrices that tools
    printed.

    Raises:
        BadInput: An input cannot be read or parsed.
    """
    documents: list[Document | PrintedMatrix] = []
    problems: list[Malformed] = []
    try:
        names = list(_files(paths))
    except Malformed as problem:
        raise BadInput([problem]) from None
    for name in names:
        try:
            documents.extend(_documents(name, _read_text(name, stdin)))
        except Malformed as problem:
            problems.append(problem)
    if problems:
        raise BadInput(problems)
    return documents


def _files(paths: Iterable[str]) -> Iterator[str]:
    paths_before: set[str] = set()
    for path in paths:
        if path in paths_before:
            raise Malformed(path, "", "given twice")
        paths_before.add(path)
        if path != STDIN and Path(path).is_dir():
            try:
                files_of_folder = sorted(
                    str(f) for f in Path(path).iterdir() if f.suffix in SUFFIXES and not f.is_dir()
                )
            except OSError as problem:
                raise Malformed(path, "", f"can't be read: {problem.strerror}") from None
            if not files_of_folder:
                raise Malformed(
                    path, "", f"no {', '.join(SUFFIXES)} in this folder{_hint_about_subfolders(Path(path))}"
                )
            yield from files_of_folder
        else:
            yield path


def _hint_about_subfolders(folder: Path) -> str:
    """Return a hint if a subfolder has manifests, because subfolders are not read."""
    try:
        folders = sorted({str(file.parent) for file in folder.glob("*/*") if file.suffix in SUFFIXES})
    except OSError:
        return ""
    return f"; folders inside it are not read: name them, as in -f {folders[0]}" if folders else ""


def _read_text(name: str, stdin: BinaryIO) -> str:
    try:
        if name == STDIN:
            data = stdin.read(MAX_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as problem:
        hint = "; give each file its own -f" if isinstance(problem, FileNotFoundError) and "," in name else ""
        why = getattr(problem, "strerror", None) or problem
        raise Malformed(name, "", f"can't be read: {why}{hint}") from None
    if len(data) > MAX_BYTES:
        raise Malformed(name, "", f"larger than {MAX_BYTES // 2**20} MiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise Malformed(name, f"byte {problem.start + 1}", "expected UTF-8 text") from None


def _documents(source: str, text: str) -> Iterator[Document | PrintedMatrix]:
    if (matrix := parse_printed(source, text)) is not None:
        yield matrix
        return
    count = 0
    for number, value in enumerate(_parse(source, text), start=1):
        if value is None:
            continue
        for document in _objects(source, f"document {number}", value, "", "", 0):
            count += 1
            if count > MAX_OBJECTS:
                raise Malformed(source, "", f"more than {MAX_OBJECTS:,} objects")
            yield document


def _parse(source: str, text: str) -> Iterator[Any]:
    """Yield the values of a text: as JSON if possible, which is much faster, else as YAML."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            values = list(_parse_json(text))
        except ValueError as problem:
            if source.endswith(".json"):
                raise Malformed(source, "", f"no valid JSON: {problem}") from None
        except RecursionError:
            raise Malformed(source, "", "nested too deeply") from None
        else:
            yield from values
            return
    elif source.endswith(".json") and text.strip():
        raise Malformed(source, "", "no valid JSON: expected an object")
    try:
        _check_depth(source, text)
        yield from yaml.load_all(text, Loader=_Loader)
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        line = f"line {mark.line + 1}" if mark is not None else ""
        hint = "; it is a template: render it first (Helm: helm template …)" if "{{" in text else ""
        why = problem.problem or problem.context
        raise Malformed(source, line, f"no valid YAML: {why}{hint}") from None
    except yaml.YAMLError as problem:
        raise Malformed(source, "", f"no valid YAML: {str(problem).splitlines()[0]}") from None
    except RecursionError:
        raise Malformed(source, "", "nested too deeply") from None
    # raised by PyYAML's constructors for odd scalars
    except (ValueError, TypeError, OverflowError) as problem:
        raise Malformed(source, "", f"no valid YAML: {problem}") from None


def _objects(source: str, place: str, value: Any, kind: str, version: str, depth: int) -> Iterator[Document]:
    """Yield the objects of one document: itself, or the items of a list.

    `kind` and `version` are those of the items of a typed list.
    """
    if not isinstance(value, dict):
        how = "as `kubectl get … -o yaml` prints it"
        raise Malformed(source, place, f"expected a Kubernetes object, {how}, got {type_name(value)}")
    value = {**({"kind": kind, "apiVersion": version} if kind else {}), **value}
    if not {"apiVersion", "kind"} <= value.keys():
        missing = " and ".join(sorted({"apiVersion", "kind"} - value.keys()))
        raise Malformed(
            source, place, f"no Kubernetes object: {missing} missing{_hint_about_other_tool(source)}"
        )
    for field in ("apiVersion", "kind"):
        text = value.get(field)
        if not isinstance(text, str) or not text:
            got = "nothing" if text is None else quote_value(text)
            raise Malformed(source, place, f"{field}: expected text like {_LIKE[field]}, got {got}")
    document = Document(source, place, value)
    if not (document.kind.endswith("List") and "items" in value):
        yield document
        return
    items, item_kind = value["items"], document.kind.removesuffix("List")
    if not isinstance(items, list | None):
        raise Malformed(source, f"{place}, {document.kind}", f"items: expected list, got {type_name(items)}")
    if depth == MAX_DEPTH:
        raise Malformed(source, place, f"more than {MAX_DEPTH} lists within each other")
    for number, item in enumerate(items or (), start=1):
        item_place = f"{place}, item {number}"
        yield from _objects(
            source, item_place, item, item_kind, document.value["apiVersion"] if item_kind else "", depth + 1
        )


_LIKE = {"apiVersion": '"v1"', "kind": '"Pod"'}


def _hint_about_other_tool(source: str) -> str:
    """Return how to get objects from a file that is another tool's input."""
    command = _MADE_BY.get(Path(source).name)
    return f". Pass what `{command}` prints" if command else ""


_MADE_BY = {
    "Chart.yaml": "helm template",
    "values.yaml": "helm template",
    "kustomization.yaml": "kubectl kustomize",
    "kustomization.yml": "kubectl kustomize",
}


# --- parsers that refuse what they would else let pass ---------------------------------------------


def _parse_json(text: str) -> Iterator[Any]:
    """Yield one JSON value after another."""
    decoder = json.JSONDecoder(object_pairs_hook=_object_without_repeats, parse_constant=_refuse_constant)
    position, end = 0, len(text)
    while position < end:
        position = _NOT_SPACE.match(text, position).end()  # type: ignore[union-attr]
        if position < end:
            value, end_of_value = decoder.raw_decode(text, position)
            if _SURROGATE.search(text, position, end_of_value):
                json.dumps(value, ensure_ascii=False).encode()
            position = end_of_value
            yield value


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""Half a character, which UTF-8 cannot encode. Without the other half, it raises a ValueError."""
_NOT_SPACE = re.compile(r"\s*")


def _object_without_repeats(pairs: list[tuple[str, Any]]) -> Object:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"{quote_value(key)} is given twice")
    return mapping


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def _check_depth(source: str, text: str) -> None:
    """Raise Malformed if YAML is nested too deeply.

    libyaml's composer calls itself for each level, so a deep document would end the process instead of
    raising. A block level takes a column, or no column if a sequence stands under its key. A flow level takes
    a bracket. Levels are counted only if the text has many of these.
    """
    longest_line = max(map(len, text.splitlines()), default=0)
    if text.count("[") + text.count("{") < MAX_LEVELS and longest_line < MAX_LEVELS:
        return
    level = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            level += 1
            if level > MAX_LEVELS:
                line = f"line {event.start_mark.line + 1}" if event.start_mark is not None else ""
                raise Malformed(source, line, "nested too deeply")
        elif isinstance(event, yaml.CollectionEndEvent):
            level -= 1


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Load safe YAML, with the C loader if PyYAML has that loader. Dates stay text, as in the API."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Object:
        keys: set[object] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in keys:
                    raise yaml.MarkedYAMLError(
                        problem=f"{quote_value(key.value)} is given twice", problem_mark=key.start_mark
                    )
                keys.add(key.value)
        mapping: Object = super().construct_mapping(node, deep=deep)
        return mapping

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        number: int = super().construct_yaml_int(node)
        if number.bit_length() > MAX_BITS:
            raise yaml.MarkedYAMLError(
                problem=f"a number of more than {MAX_BITS} bits", problem_mark=node.start_mark
            )
        return number


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


# --- what is wrong -------------------------------------------------------------------------------

_SHOWN = 80


class Malformed(Exception):
    """Report one problem of the input. `place` is where: "document 3, Pod default/x"."""

    def __init__(self, source: str, place: str, problem: str) -> None:
        self.source, self.problem = source, printable(problem)
        super().__init__(printable(": ".join(part for part in (source, place, problem) if part)))


class BadInput(Exception):
    """Report input that cannot be used. `lines` has one line for each malformed file."""

    def __init__(self, problems: Sequence[Malformed]) -> None:
        by_file: dict[str, list[Malformed]] = {}
        for problem in problems:
            by_file.setdefault(problem.source, []).append(problem)
        self.lines = tuple(
            f"{first}{f' (and {len(other_problems)} more in this file)' if other_problems else ''}"
            for first, *other_problems in by_file.values()
        )
        super().__init__("\n".join(self.lines))


def quote_value(value: object) -> str:
    """Return a value from a file as text for a sentence; for lists and objects only their type."""
    if isinstance(value, list | dict):
        return type_name(value)
    text = str(value)
    return f'"{text[:_SHOWN]}…"' if len(text) > _SHOWN else f'"{text}"'


def type_name(value: object) -> str:
    """Return JSON's word for the type of a value."""
    return WORDS.get(type(value).__name__, type(value).__name__)


WORDS = {
    "NoneType": "null",
    "array": "list",
    "bool": "boolean",
    "dict": "object",
    "float": "number",
    "int": "integer",
    "str": "string",
}
"""The names of types in Python and in msgspec → JSON's words."""


# --- links of GPUs, as tools print them ----------------------------------------------------------

_NODES = re.compile(r"^#\s*nodes?\s*:(.*)$", re.IGNORECASE | re.MULTILINE)
_OBJECT = "apiVersion"
"""Every object of Kubernetes contains this word. An object that carries a matrix is not a matrix."""


@dataclass(frozen=True, slots=True)
class PrintedMatrix:
    """A file with a link matrix, as a tool printed it, and the names or patterns of its nodes."""

    source: str
    nodes: tuple[str, ...]
    text: str


def parse_printed(source: str, text: str) -> PrintedMatrix | None:
    """Return the file's matrix and the nodes that it names; None if the text is something else."""
    if _OBJECT in text or not (source.endswith(".txt") or matrices.is_table(text)):
        return None
    line = _NODES.search(text)
    names = (name.strip() for name in line[1].split(",")) if line else ()
    return PrintedMatrix(source, tuple(name for name in names if name), text)


def annotate(
    nodes: Sequence[NodeObject], files: Iterable[PrintedMatrix], key: str
) -> tuple[list[NodeObject], list[str]]:
    """Return the nodes with each file's text as their annotation `key`, and notes about what that replaces.

    Raises:
        BadInput: A file has no matrix, or names a node that is missing, or one that another file names.
    """
    texts: dict[str, PrintedMatrix] = {}
    problems: list[Malformed] = []
    names = [node.metadata.name for node in nodes]
    for file in files:
        try:
            matrices.read(file.text)
            for name in _nodes_of(file, names):
                if (first := texts.setdefault(name, file)) is not file:
                    problem = f"node {name} has its links from {first.source} already"
                    problems.append(Malformed(file.source, "", problem))
        except matrices.Unreadable as error:
            problems.append(Malformed(file.source, "", f"no links of GPUs in it: {error}"))
        except Malformed as problem:
            problems.append(problem)
    if problems:
        raise BadInput(problems)
    notes = [
        f"Node {node.metadata.name}: its links are those of {texts[node.metadata.name].source}, not its {key}"
        for node in nodes
        if node.metadata.name in texts and key in (node.metadata.annotations or {})
    ]
    return [_with_annotation(node, key, texts.get(node.metadata.name)) for node in nodes], notes


def _nodes_of(file: PrintedMatrix, nodes: Sequence[str]) -> list[str]:
    file_name = Path(file.source).name
    patterns = file.nodes or ((file_name,) if file_name in nodes else (file_name.removesuffix(".txt"),))
    names: list[str] = []
    for pattern in patterns:
        matches = [name for name in nodes if fnmatchcase(name, pattern)]
        if not matches:
            how = "name the file like its node, or its nodes in a line like `# nodes: gpu-1, dgx-*`"
            raise Malformed(file.source, "", f"no node of the input is named {quote_value(pattern)}; {how}")
        names += matches
    return list(dict.fromkeys(names))


def _with_annotation(node: NodeObject, key: str, file: PrintedMatrix | None) -> NodeObject:
    if file is None:
        return node
    annotations = (node.metadata.annotations or {}) | {key: file.text}
    return msgspec.structs.replace(
        node, metadata=msgspec.structs.replace(node.metadata, annotations=annotations)
    )
