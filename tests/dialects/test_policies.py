"""The ConfigMap of policies and levels: what is read of it, and the sentences about what is not."""

from __future__ import annotations

import pytest
import yaml

from muster.dialects.policies import read
from muster.domain.levels import DEFAULT_LEVELS, PRESETS, Naming
from muster.domain.policies import Policies, Policy, PolicyTopology, Strategy
from muster.domain.request import PolicyTerm, TypicalRequest

RECIPE = """
topologyAwareScheduling:
  enabled: true
  policies:
    # Prefer GPUs within same NVLink domain
    - name: nvlink-locality
      weight: 100
      topology: nvlink
      strategy: pack   # Pack within NVLink domain
    # Consider NUMA locality
    - name: numa-locality
      weight: 50
      topology: numa
      strategy: pack
    # Prefer nodes with NVSwitch for multi-node
    - name: nvswitch-preference
      weight: 80
      topology: nvswitch
      strategy: prefer
  # Topology hierarchy
  levels:
    - name: gpu
      label: nvidia.com/gpu
    - name: nvlink-domain
      label: gpu.topology/nvlink-domain
    - name: numa-node
      label: topology.kubernetes.io/numa-node
    - name: node
      label: kubernetes.io/hostname
"""
"""tas-config.yaml of the recipe, its indentation restored."""


def good(text: str) -> Policies:
    policies, problems = read(text)
    assert problems == ()
    assert policies is not None
    return policies


def scopes(text: str) -> list[str]:
    """The levels, widest first."""
    return [level.scope for level in good(text).levels]


def test_the_recipe() -> None:
    policies = good(RECIPE)
    assert policies.policies == (
        Policy("nvlink-locality", 100, PolicyTerm("nvlink", "pack")),
        Policy("numa-locality", 50, PolicyTerm("numa", "pack")),
        Policy("nvswitch-preference", 80, PolicyTerm("nvswitch", "prefer")),
    )
    assert policies.levels == DEFAULT_LEVELS, "numa-node is listed before node: inside it"
    names = ("numa-locality", "nvlink-locality", "nvswitch-preference")
    assert policies.terms(names) == (
        PolicyTerm("nvlink", "pack"),
        PolicyTerm("nvswitch", "prefer"),
        PolicyTerm("numa", "pack"),
    )


def test_policies_and_levels_may_stand_beside_the_section() -> None:
    section, *more_sections = yaml.safe_load(RECIPE).items()
    assert not more_sections
    fields = dict(section[1])
    flat = {key: fields.pop(key) for key in ("policies", "levels")}
    assert good(yaml.safe_dump({"topologyAwareScheduling": fields, **flat})) == good(RECIPE)


@pytest.mark.parametrize(
    ("text", "policies"),
    [
        ("topologyAwareScheduling:", Policies()),
        ("topologyAwareScheduling: {}", Policies()),
        ("topologyAwareScheduling: {enabled: true, policies: [], levels: []}", Policies()),
        ("topologyAwareScheduling: {enabled: false}", Policies(enabled=False)),
        ("other: {things: [1]}\ntopologyAwareScheduling: {}", Policies()),
        ("policies: []", Policies()),
    ],
)
def test_what_is_not_said_is_the_default(text: str, policies: Policies) -> None:
    assert good(text) == policies


@pytest.mark.parametrize("topology", PolicyTopology)
@pytest.mark.parametrize("strategy", Strategy)
def test_every_strategy_goes_with_every_topology(topology: str, strategy: str) -> None:
    text = f"policies: [{{name: p, weight: 1, topology: {topology}, strategy: {strategy}}}]"
    assert good(text).policies == (Policy("p", 1, PolicyTerm(topology, strategy)),)


LEVELS: dict[str, tuple[str, list[str]]] = {
    # what: levels as listed, all of them from wide to narrow
    "none": ("", ["zone", "rack"]),
    "built-in ones change nothing": ("gpu=nvidia.com/gpu,node=kubernetes.io/hostname", ["zone", "rack"]),
    "one within the rack": ("block=x/block", ["zone", "rack", "block"]),
    "one between rack and zone": ("rack=x/rack,block=x/block,zone=x/zone", ["zone", "block", "rack"]),
    "one wider than the rack": ("rack=x/rack,block=x/block", ["zone", "block", "rack"]),
    "one wider than the zone": ("zone=x/zone,region=x/region", ["region", "zone", "rack"]),
    "one within the zone": ("block=x/block,zone=x/zone", ["zone", "rack", "block"]),
    "two within the rack": ("node=kubernetes.io/hostname,a=x/a,b=x/b", ["zone", "rack", "b", "a"]),
}


@pytest.mark.parametrize(("listed", "wide_first"), LEVELS.values(), ids=LEVELS.keys())
def test_levels_extend_those_there_are(listed: str, wide_first: list[str]) -> None:
    pairs = [pair.split("=") for pair in listed.split(",") if pair]
    levels = [{"name": name, "label": label} for name, label in pairs]
    text = yaml.safe_dump({"topologyAwareScheduling": {"levels": levels}})
    assert scopes(text) == wide_first
    labels = {level.scope: level.labels for level in good(text).levels}
    for name, label in pairs:
        if name in labels:
            assert labels[name] == (label,)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_replaces_the_default_levels(preset: str) -> None:
    policies = good(f"topologyAwareScheduling: {{preset: {preset}}}")
    assert policies.levels == PRESETS[preset]
    assert {level.scope for level in DEFAULT_LEVELS} <= {level.scope for level in policies.levels}
    row = f"topologyAwareScheduling: {{preset: {preset}, levels: [{{name: rack, label: x/rack}}]}}"
    assert {level.scope: level.labels for level in good(row).levels}["rack"] == ("x/rack",)
    assert scopes(row) == [level.scope for level in PRESETS[preset]]


def test_names_that_are_unique() -> None:
    text = "topologyAwareScheduling: {uniqueNames: [rack, nvlink-domain, example.com/row]}"
    assert good(text).naming == Naming(("example.com/row", "nvlink-domain", "rack"))


def test_typical_requests() -> None:
    text = """
topologyAwareScheduling:
  typicalRequests:
    - {share: 60, cpu: 8}
    - {share: 37.5, gpuMemory: 8, gpus: 2, cpu: 500m}
    - share: 2.5
      gpus: 8
      nodeLabels: {nvidia.com/gpu.product: [H200, A100], pool: big}
"""
    assert good(text).typical == (
        TypicalRequest(60, 1, 8000),
        TypicalRequest(37.5, 2, 500, units=8),
        TypicalRequest(2.5, 8, labels=(("nvidia.com/gpu.product", ("A100", "H200")), ("pool", ("big",)))),
    )


def policy(**fields: object) -> str:
    """A text of one policy, with these fields changed; None leaves one out."""
    values = {"name": "p", "weight": 1, "topology": "nvlink", "strategy": "pack", **fields}
    present = {key: value for key, value in values.items() if value is not None}
    return yaml.safe_dump({"topologyAwareScheduling": {"policies": [present]}})


def level(name: str, label: object) -> str:
    return yaml.safe_dump({"topologyAwareScheduling": {"levels": [{"name": name, "label": label}]}})


MANY = "\n".join(f"  - {{name: p{i}, weight: 1, topology: numa, strategy: pack}}" for i in range(33))
TYPICAL_257 = ", ".join(["{share: 1}"] * 257)
LEVELS_17 = ", ".join(f"{{name: l{i}, label: x/l{i}}}" for i in range(17))
BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]"
BAD: dict[str, tuple[str, str]] = {
    "empty": ("", "config.yaml: expected, but missing or empty"),
    "blank": (" \n ", "config.yaml: expected, but missing or empty"),
    "no YAML": ("[", "config.yaml: no YAML that can be read"),
    "a tab": ("a:\n\t- b", "config.yaml: no YAML that can be read"),
    "a control character": ("\x00", "config.yaml: no YAML that can be read"),
    "very deep": ("[" * 50_000, "nested too deeply: at most 32 levels are read"),
    "thousands of keys": (
        "".join(f"{key:x}:\n" for key in range(11_500)), "too much of it: at most 4,000 keys, values",
    ),
    "thousands of values": (f"policies: [{'a,' * 32_000}]", "too much of it: at most 4,000 keys"),
    "half a character": (r'policies: "\ud800"', "config.yaml: "),
    "a character beyond all": (r'policies: "\UFFFFFFFF"', "config.yaml: no YAML that can be read"),
    "a version of many digits": (f"%YAML 1.{'1' * 5_000}\n--- []", "config.yaml: no YAML that can be read"),
    "far too long": ("#" * 70_000, "config.yaml: 70,000 characters; at most 65,536 are read"),
    "a bomb of aliases": (BOMB, "aliases (*name) are not read"),
    "a key twice": ("policies: []\npolicies: []", "the key 'policies' is given twice"),
    "a list": ("[1]", "expected a mapping that begins with topologyAwareScheduling:"),
    "something else": ("queues: []", "config.yaml: expected topologyAwareScheduling, and it is not there"),
    "the section is text": ("topologyAwareScheduling: on", '"on", expected a mapping with enabled, policies'),
    "an unknown field": (
        "topologyAwareScheduling: {enable: true}",
        "topologyAwareScheduling.enable: unknown; known here: enabled, policies, levels, preset",
    ),
    "enabled: maybe": ("topologyAwareScheduling: {enabled: maybe}", '"maybe", expected true or false'),
    "policies twice": ("policies: []\ntopologyAwareScheduling: {policies: []}", "policies: given twice"),
    "policies are a mapping": ("policies: {name: p}", "policies: \"{'name': 'p'}\", expected a list"),
    "a policy is text": ("policies: [pack]", 'policies[0]: "pack", expected a mapping with name, weight'),
    "too many policies": (f"policies:\n{MANY}", "policies: 33 of them; at most 32 are read"),
    "no name": (policy(name=None), "policies[0].name: missing, expected a name"),
    "a name with a blank": (policy(name="a b"), 'policies[0].name: "a b", expected a name'),
    "a name that is a list": (policy(name=["p"]), "policies[0].name: "),
    "a name twice": (
        "policies:\n" + "  - {name: p, weight: 1, topology: numa, strategy: pack}\n" * 2,
        'policies[1].name: "p" is given twice',
    ),
    "no weight": (policy(weight=None), "policies[0].weight: missing, expected a whole number from 0 to 1000"),
    "a negative weight": (policy(weight=-1), 'policies[0].weight: "-1", expected a whole number'),
    "half a weight": (policy(weight=0.5), 'policies[0].weight: "0.5"'),
    "a weight in words": (policy(weight="high"), 'policies[0].weight: "high"'),
    "too much weight": (policy(weight=1001), 'policies[0].weight: "1001"'),
    "an unknown topology": (
        policy(topology="fans"), f'policies[0].topology: "fans", expected one of {", ".join(PolicyTopology)}',
    ),
    "no topology": (policy(topology=None), "policies[0].topology: missing"),
    "a topology that is a mapping": (policy(topology={}), "policies[0].topology: "),
    "an unknown strategy": (
        policy(strategy="binpack"), 'policies[0].strategy: "binpack", expected one of pack, prefer, spread',
    ),
    "an unknown field of a policy": (policy(scope="rack"), "policies[0].scope: unknown; known here: name"),
    "a level without a label": (level("rack", ""), "levels[0].label: missing, expected a label key"),
    "a label that is none": (level("rack", "a b"), 'levels[0].label: "a b", expected a label key of nodes'),
    "a label that is a list": (level("rack", ["a"]), "levels[0].label: "),
    "a level's name that is none": (level("a/b", "x/y"), 'levels[0].name: "a/b", expected a name'),
    "another label for the node": (
        level("node", "example.com/host"),
        "expected kubernetes.io/hostname: the scope node can't be changed",
    ),
    "another label for the NVLink domain": (
        level("nvlink-domain", "example.com/nvl"),
        "expected gpu.topology/nvlink-domain or nvidia.com/gpu.clique: the scope nvlink-domain can't",
    ),
    "from wide to narrow": (
        "levels: [{name: zone, label: x/z}, {name: rack, label: x/r}]",
        "levels: zone comes before rack: list them from the narrowest to the widest",
    ),
    "too many levels": (f"levels: [{LEVELS_17}]", "levels: 17 of them; at most 16 are read"),
    "typical requests are a mapping": (
        "topologyAwareScheduling: {typicalRequests: {share: 1}}", "typicalRequests: \"{'share': '1'}\"",
    ),
    "too many typical requests": (
        f"topologyAwareScheduling: {{typicalRequests: [{TYPICAL_257}]}}", "257 of them; at most 256 are read",
    ),
    "unique names of a level that is none": (
        "topologyAwareScheduling: {uniqueNames: [rakc]}",
        'uniqueNames[0]: "rakc", expected one of nvlink-domain, zone, rack, or a label key',
    ),
    "unique names of nodes": ("topologyAwareScheduling: {uniqueNames: [node]}", 'uniqueNames[0]: "node"'),
    "an unknown preset": (
        "topologyAwareScheduling: {preset: azure}", '"azure", expected one of topograph, eks, gke, oke',
    ),
    "a preset that is a list": ("topologyAwareScheduling: {preset: [gke]}", "Scheduling.preset: \"['gke']\""),
}  # fmt: skip


BAD_TYPICAL: dict[str, tuple[object, str]] = {
    # what: the one typical request, and what is said of typicalRequests[0]
    "text": ("8 GPUs", ': "8 GPUs", expected a mapping with share, gpus, cpu, gpuMemory, nodeLabels'),
    "no share": ({"gpus": 1}, ".share: missing, expected a number above 0"),
    "a share of none": ({"share": 0}, '.share: "0", expected a number above 0'),
    "a negative share": ({"share": -1}, '.share: "-1"'),
    "a share in words": ({"share": "most"}, '.share: "most"'),
    "a share in percent": ({"share": "5%"}, '.share: "5%"'),
    "a share that is a list": ({"share": [1]}, ".share: "),
    "no GPUs at all": ({"share": 1, "gpus": 0}, '.gpus: "0", expected a whole number above 0'),
    "half a GPU": ({"share": 1, "gpus": 0.5}, '.gpus: "0.5"'),
    "more GPUs than any": ({"share": 1, "gpus": 10**10}, '.gpus: "10000000000"'),
    "memory with a unit": ({"share": 1, "gpuMemory": "8Gi"}, '.gpuMemory: "8Gi", expected a whole number'),
    "cpu in words": ({"share": 1, "cpu": "two"}, '.cpu: "two", expected a quantity of cpu'),
    "negative cpu": ({"share": 1, "cpu": -1}, '.cpu: "-1"'),
    "an unknown field": ({"share": 1, "memory": 1}, ".memory: unknown; known here: share, gpus, cpu"),
    "labels that are a list": (
        {"share": 1, "nodeLabels": ["a"]},
        ".nodeLabels: \"['a']\", expected a mapping",
    ),
    "a label that is none": (
        {"share": 1, "nodeLabels": {"a b": "c"}},
        '.nodeLabels.a b: "a b", expected a label',
    ),
    "a label without a value": (
        {"share": 1, "nodeLabels": {"a": ""}},
        ".nodeLabels.a: missing, expected a value",
    ),
    "a label with no values": (
        {"share": 1, "nodeLabels": {"a": []}},
        '.nodeLabels.a: "[]", expected a value',
    ),
}


@pytest.mark.parametrize(("item", "says"), BAD_TYPICAL.values(), ids=BAD_TYPICAL.keys())
def test_a_typical_request_that_is_not_well_formed_is_refused_and_named(item: object, says: str) -> None:
    policies, problems = read(yaml.safe_dump({"topologyAwareScheduling": {"typicalRequests": [item]}}))
    assert policies is None
    assert f"topologyAwareScheduling.typicalRequests[0]{says}" in "\n".join(problems)


@pytest.mark.parametrize(("text", "says"), BAD.values(), ids=BAD.keys())
def test_what_is_not_well_formed_is_refused_and_named(text: str, says: str) -> None:
    policies, problems = read(text)
    assert policies is None
    sentences = "\n".join(problems)
    assert says in sentences
    assert sentences.encode(), "an event carries UTF-8"


def test_every_problem_is_named_at_once() -> None:
    text = "policies: [{name: a b, weight: x, topology: y, strategy: z}]\nlevels: [{name: r, label: a b}]"
    fields = {problem.split(":")[0] for problem in read(text)[1]}
    assert fields == {
        *(f"policies[0].{field}" for field in ("name", "weight", "topology", "strategy")),
        "levels[0].label",
    }
