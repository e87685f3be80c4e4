"""The cluster's policies, levels and typical requests: the ConfigMap of the topology recipe, in YAML.

topologyAwareScheduling:
  enabled: true
  policies:
    - {name: nvlink-locality, weight: 100, topology: nvlink, strategy: pack}
  levels:                                     # from the narrowest to the widest
    - {name: nvlink-domain, label: gpu.topology/nvlink-domain}
    - {name: rack, label: example.com/rack}
  preset: topograph                           # ours: the levels of a known fabric instead of rack and zone
  uniqueNames: [rack]                         # ours: no two racks have one name, whatever zones they are in
  typicalRequests:                            # ours: what usually comes
    - {share: 30, gpus: 1, cpu: 8}

`policies` and `levels` may also be at the top, next to topologyAwareScheduling. Other keys at the top are not
read. docs/policies.md has every field, and its effect on the planner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import yaml

from muster.dialects.quantities import milli, parse
from muster.dialects.reading import A_NAME, LABEL_KEY, NAME_PATTERN, natural
from muster.dialects.settings import ALIYUN_GPU
from muster.domain.levels import DEFAULT_LEVELS, PRESETS, FabricLevel, Naming
from muster.domain.policies import Policies, Policy, PolicyTopology, Strategy
from muster.domain.request import PolicyTerm, Scope, TypicalRequest

SECTION = "topologyAwareScheduling"

MAX_CHARACTERS = 64 * 1024
MAX_PIECES = 4_000
"""Largest number of keys, values, lists and mappings of the whole text, including parts that are not ours. A
thousand take some milliseconds to read, in which the event loop stands."""
MAX_DEPTH = 32
MAX_POLICIES = 32
MAX_LEVELS = 16
MAX_WEIGHT = 1000
MAX_TYPICAL = 256

BUILT_IN = MappingProxyType(
    {
        Scope.GPU.value: ("nvidia.com/gpu", ALIYUN_GPU, "amd.com/gpu"),
        Scope.NVLINK_DOMAIN.value: ("gpu.topology/nvlink-domain", "nvidia.com/gpu.clique"),
        Scope.NODE.value: ("kubernetes.io/hostname",),
    }
)
"""Scopes with a fixed meaning → labels that may be stated for them without effect."""

_ORDER = (*BUILT_IN, *(level.scope for level in reversed(DEFAULT_LEVELS)))

_SHOWN = 60
_A_LABEL = "a label key of nodes"


def read(text: str) -> tuple[Policies | None, tuple[str, ...]]:
    """Return the policies, or None and a sentence for each problem: then the last good policies stay."""
    reader = _PolicyReader()
    policies = reader.policies(text)
    return (None, tuple(reader.problems)) if reader.problems else (policies, ())


def not_a_scope_of_labels(scope: object, levels: tuple[FabricLevel, ...]) -> str:
    """Return the expected value if labels can't name domains of this scope; "" if they can."""
    words = (Scope.NVLINK_DOMAIN.value, *(level.scope for level in levels))
    if scope in words or (isinstance(scope, str) and "/" in scope and LABEL_KEY.fullmatch(scope)):
        return ""
    return f"one of {', '.join(words)}, or a label key as example.com/row"


class _PolicyReader:
    """Reads one text and collects problems. All scalars are text, without YAML's guesses (no → false)."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def policies(self, text: str) -> Policies:
        top = self._top(text)
        known_keys = ("enabled", "policies", "levels", "preset", "uniqueNames", "typicalRequests")
        section = self._mapping(SECTION, top.get(SECTION, ""), known_keys)
        for key in ("policies", "levels"):
            if key in top and key in section:
                self._problem(key, f"given twice, also under {SECTION}: keep one of them")
        enabled = section.get("enabled", "true")
        if enabled not in ("true", "false"):
            self._bad(f"{SECTION}.enabled", enabled, "true or false")
        levels = self._levels(section.get("levels", top.get("levels", "")), section.get("preset", ""))
        return Policies(
            enabled == "true",
            self._policies(section.get("policies", top.get("policies", ""))),
            levels,
            self._typical_requests(section.get("typicalRequests", "")),
            Naming(self._unique_scopes(section.get("uniqueNames", ""), levels)),
        )

    def _top(self, text: str) -> dict[str, Any]:
        if not text.strip():
            self._problem("config.yaml", f"expected, but missing or empty: it begins with {SECTION}:")
            return {}
        if len(text) > MAX_CHARACTERS:
            self._problem("config.yaml", f"{len(text):,} characters; at most {MAX_CHARACTERS:,} are read")
            return {}
        try:
            _check_size(text)
            value = yaml.load(text, _Loader)
        except (yaml.YAMLError, ValueError, OverflowError) as error:  # the latter of escapes beyond Unicode
            self._problem("config.yaml", f"no YAML that can be read: {' '.join(str(error).split())[:160]}")
            return {}
        if not isinstance(value, dict):
            self._bad("config.yaml", value, f"a mapping that begins with {SECTION}:")
            return {}
        if not any(key in value for key in (SECTION, "policies", "levels")):
            self._problem("config.yaml", f"expected {SECTION}, and it is not there")
        return value

    def _policies(self, value: object) -> tuple[Policy, ...]:
        policies: dict[str, Policy] = {}
        for field_path, item in self._items("policies", value, MAX_POLICIES):
            policy = self._mapping(field_path, item, ("name", "weight", "topology", "strategy"))
            name = self._name(field_path, policy, policies)
            weight = natural(policy["weight"]) if isinstance(policy.get("weight"), str) else None
            if weight is None or weight > MAX_WEIGHT:
                self._bad(
                    f"{field_path}.weight", policy.get("weight"), f"a whole number from 0 to {MAX_WEIGHT}"
                )
            topology = self._word(f"{field_path}.topology", policy.get("topology"), PolicyTopology)
            strategy = self._word(f"{field_path}.strategy", policy.get("strategy"), Strategy)
            policies[name] = Policy(name, weight or 0, PolicyTerm(topology, strategy))
        return tuple(policies.values())

    def _levels(self, value: object, preset: object) -> tuple[FabricLevel, ...]:
        """Return the levels of the preset (or the default levels) together with the levels of the text."""
        base = PRESETS.get(preset) if isinstance(preset, str) else None
        if base is None and preset != "":
            self._bad(f"{SECTION}.preset", preset, f"one of {', '.join(PRESETS)}")
        levels_by_name: dict[str, FabricLevel] = {}
        for field_path, item in self._items("levels", value, MAX_LEVELS):
            fields = self._mapping(field_path, item, ("name", "label"))
            name = self._name(field_path, fields, levels_by_name)
            label = fields.get("label")
            if not isinstance(label, str) or not LABEL_KEY.fullmatch(label):
                self._bad(f"{field_path}.label", label, _A_LABEL)
            elif name in BUILT_IN and label not in BUILT_IN[name]:
                fixed = f"the scope {name} can't be changed; give a level of your own another name"
                expected = f"{' or '.join(BUILT_IN[name])}: {fixed}"
                self._bad(f"{field_path}.label", label, expected)
            else:
                levels_by_name[name] = FabricLevel(name, (label,))
        self._check_order(levels_by_name)
        names = list(levels_by_name)
        # A label of a node can't tell domains inside the node apart, so levels before the node are left out.
        above = names[names.index(Scope.NODE) if Scope.NODE in names else 0 :]
        return _merge_levels(
            base or DEFAULT_LEVELS, [levels_by_name[name] for name in above if name not in BUILT_IN]
        )

    def _unique_scopes(self, value: object, levels: tuple[FabricLevel, ...]) -> tuple[str, ...]:
        scopes = []
        for field_path, scope in self._items("uniqueNames", value, MAX_LEVELS):
            if problem := not_a_scope_of_labels(scope, levels):
                self._bad(field_path, scope, problem)
            scopes.append(str(scope))
        return tuple(sorted(set(scopes)))

    def _typical_requests(self, value: object) -> tuple[TypicalRequest, ...]:
        return tuple(
            self._typical_request(f"{SECTION}.{field_path}", item)
            for field_path, item in self._items("typicalRequests", value, MAX_TYPICAL)
        )

    def _typical_request(self, field_path: str, item: object) -> TypicalRequest:
        fields = self._mapping(field_path, item, ("share", "gpus", "cpu", "gpuMemory", "nodeLabels"))
        share, cpu = (
            self._quantity(fields.get(key, default)) for key, default in (("share", ""), ("cpu", "0"))
        )
        if not share:
            self._bad(f"{field_path}.share", fields.get("share"), "a number above 0: how many such pods come")
        if cpu is None:
            self._bad(f"{field_path}.cpu", fields.get("cpu"), "a quantity of cpu, as 8 or 500m")
        counts = []
        for key, default in (("gpus", "1"), ("gpuMemory", "0")):
            text = fields.get(key, default)
            count = natural(text) if isinstance(text, str) else None
            if count is None or (not count and key in fields):
                self._bad(f"{field_path}.{key}", text, "a whole number above 0")
            counts.append(count or 0)
        labels = tuple(
            (str(key), self._label_values(f"{field_path}.nodeLabels.{str(key)[:_SHOWN]}", str(key), values))
            for key, values in self._mapping(f"{field_path}.nodeLabels", fields.get("nodeLabels", "")).items()
        )
        return TypicalRequest(
            float(share or 0), counts[0], milli(cpu or Fraction(0)), counts[1], tuple(sorted(labels))
        )

    def _label_values(self, field_path: str, key: str, values: object) -> tuple[str, ...]:
        value_list = values if isinstance(values, list) else [values]
        if not LABEL_KEY.fullmatch(key):
            self._bad(field_path, key, _A_LABEL)
        if not value_list or not all(isinstance(value, str) and value for value in value_list):
            self._bad(field_path, values, "a value of the label, or a list of values")
            return ()
        return tuple(sorted(set(value_list)))

    def _quantity(self, value: object) -> Fraction | None:
        """Return the quantity; None if it is negative or no quantity."""
        quantity = parse(value) if isinstance(value, str) else None
        return quantity if quantity is not None and quantity >= 0 else None

    def _check_order(self, names: Iterable[str]) -> None:
        built_in = [name for name in names if name in _ORDER]
        for scope, next_scope in pairwise(built_in):
            if _ORDER.index(scope) > _ORDER.index(next_scope):
                self._problem(
                    "levels", f"{scope} comes before {next_scope}: list them from the narrowest to the widest"
                )
                return

    def _items(self, field: str, value: object, limit: int) -> list[tuple[str, object]]:
        """Return the items of a list, each with its field path."""
        if value == "":
            return []
        if not isinstance(value, list):
            self._bad(field, value, "a list")
            return []
        if len(value) > limit:
            self._problem(field, f"{len(value)} of them; at most {limit} are read")
            return []
        return [(f"{field}[{number}]", item) for number, item in enumerate(value)]

    def _mapping(self, field: str, value: object, keys: tuple[str, ...] | None = None) -> dict[str, Any]:
        """Return the value if it is a mapping with these keys. Without `keys`, any keys are allowed."""
        if value == "":
            return {}
        if not isinstance(value, dict):
            self._bad(field, value, f"a mapping with {', '.join(keys)}" if keys else "a mapping")
            return {}
        for key in value:
            if keys and key not in keys:
                self._problem(f"{field}.{str(key)[:_SHOWN]}", f"unknown; known here: {', '.join(keys)}")
        return value

    def _name(self, field_path: str, fields: Mapping[str, Any], earlier_names: Mapping[str, object]) -> str:
        name = fields.get("name")
        if not isinstance(name, str) or not NAME_PATTERN.fullmatch(name):
            self._bad(f"{field_path}.name", name, A_NAME)
            return ""
        if name in earlier_names:
            self._problem(f"{field_path}.name", f'"{name}" is given twice')
        return name

    def _word(self, field: str, value: object, words: type[PolicyTopology] | type[Strategy]) -> str:
        if not isinstance(value, str) or value not in set(words):
            self._bad(field, value, f"one of {', '.join(words)}")
        return str(value)

    def _bad(self, field: str, value: object, expected: str) -> None:
        shown = "missing" if value is None or value == "" else f'"{str(value)[:_SHOWN]}"'
        self._problem(field, f"{shown}, expected {expected}")

    def _problem(self, field: str, text: str) -> None:
        """Note a problem. YAML may contain an unpaired surrogate (\\ud800), which no event can carry."""
        if len(self.problems) < MAX_POLICIES:
            self.problems.append(f"{field}: {text}".encode(errors="backslashreplace").decode())


def _merge_levels(base: tuple[FabricLevel, ...], listed: list[FabricLevel]) -> tuple[FabricLevel, ...]:
    """Return the levels, widest first. `listed` are the levels of the text, narrowest first.

    A level of `base` that is not listed stays just inside its next wider level. The widest stays the widest.
    """
    narrow_first = list(listed)
    wider: str | None = None
    for base_level in base:
        scopes = [level.scope for level in narrow_first]
        if base_level.scope not in scopes:
            narrow_first.insert(scopes.index(wider) if wider is not None else len(scopes), base_level)
        wider = base_level.scope
    return tuple(reversed(narrow_first))


class _Loader(getattr(yaml, "CBaseLoader", yaml.BaseLoader)):  # type: ignore[misc]
    """PyYAML's loader, in C if it has one. Duplicate keys are refused, because the first would be lost."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys: set[str] = set()
        for key in (key.value for key, _ in node.value if isinstance(key.value, str)):
            if key in keys:
                raise yaml.YAMLError(f"the key {key[:_SHOWN]!r} is given twice")
            keys.add(key)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping


def _check_size(text: str) -> None:
    """Check the number of pieces of the text. Aliases are refused: they can make a text grow without bound.

    Raises:
        yaml.YAMLError: the text has too many pieces, or is no YAML.
    """
    pieces = depth = 0
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not read: write the value again")
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.CollectionStartEvent | yaml.ScalarEvent):
            pieces += 1
            depth += isinstance(event, yaml.CollectionStartEvent)
        if depth > MAX_DEPTH:
            raise yaml.YAMLError(f"nested too deeply: at most {MAX_DEPTH} levels are read")
        if pieces > MAX_PIECES:
            raise yaml.YAMLError(f"too much of it: at most {MAX_PIECES:,} keys, values and lists are read")
