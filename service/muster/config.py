"""Declare the service's settings.

Every field has a default that works, and a docstring that documents it. `muster config` prints them all.
`config_sources` reads them from files, the environment and flags.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    field_validator,
    with_config,
)

from muster.dialects.kinds.table import KINDS
from muster.dialects.settings import Mode
from muster.gangs.messages.settings import GangSettings, Seconds

_STRICT = ConfigDict(
    extra="forbid",
    frozen=True,
    validate_default=True,
    allow_inf_nan=False,
    use_attribute_docstrings=True,
)


def _check_kind(name: str) -> str:
    if name != "default" and name not in KINDS:
        raise ValueError(f"known are default, {', '.join(KINDS)}")
    return name


def _mode_meant(value: object) -> object:
    """Return the mode that was meant: YAML reads a bare on or off as true or false."""
    return ("on" if value else "off") if isinstance(value, bool) else value


KindOfJob = Annotated[
    str, AfterValidator(_check_kind), WithJsonSchema({"type": "string", "enum": ["default", *KINDS]})
]
Inferred = Annotated[Mode, BeforeValidator(_mode_meant, json_schema_input_type=Mode | bool)]
PerSecond = Annotated[float, Field(gt=0, allow_inf_nan=True)]
NodeLabel = Annotated[str, Field(pattern=r"^([A-Za-z0-9._/-]+=[A-Za-z0-9._-]*)?$", max_length=400)]
"""key=value, or empty."""
Positive = Annotated[int, Field(gt=0)]
Port = Annotated[int, Field(ge=0, le=65535)]


def default_socket() -> Path:
    """/run/muster/muster.sock for root, else below $XDG_RUNTIME_DIR or a private folder in /tmp."""
    if os.geteuid() == 0:
        return Path("/run/muster/muster.sock")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime or f"/tmp/muster-{os.geteuid()}") / "muster" / "muster.sock"


class _Section(BaseModel):
    model_config = _STRICT


class Http(_Section):
    """Where the service answers HTTP."""

    host: str = "127.0.0.1"
    """Address of what is shown over HTTP: /metrics, /healthz, /gangs …"""
    port: Port | None = 0
    """Its port; 0 takes a free one (written next to the socket), null is off."""


class Page(_Section):
    """The page with the map of GPUs and the gangs that wait."""

    host: str = "127.0.0.1"
    """Address that the page listens on. Elsewhere than on loopback, set `tokens` too."""
    port: Port | None = 0
    """Its port; 0 takes a free one (it is logged), null is off."""
    tokens: bool = False
    """Whether a bearer token is needed. The API server checks it, and that its user may get /muster/page."""
    clients: Positive = 32
    """Browsers that may be connected; more get 503."""


class Log(_Section):
    """What is logged, and how it is written."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least that is logged."""
    format: Literal["auto", "json", "console"] = "auto"
    """auto: console on a terminal, else json."""


class Watch(_Section):
    """How the API server is watched."""

    page_size: Positive = 500
    """Objects in one list request."""
    timeout_s: Seconds = 300.0
    """Seconds after which the API server is asked to end a watch."""
    read_deadline_s: Seconds = 120.0
    """Silence after which a watch is opened again: nothing may have happened, or it is dead."""
    backoff_first_s: Seconds = 0.25
    """First wait before a broken watch is tried again."""
    backoff_limit_s: Seconds = 5.0
    """Longest wait between two tries; nothing is planned meanwhile."""


class PodGroups(_Section):
    """Whether PodGroups are watched."""

    enabled: bool = True
    """Whether PodGroups, and KAI's Topologies, are watched where their CRDs are installed."""


class ConfigMaps(_Section):
    """Where device plugins publish GPU topologies and health."""

    enabled: bool = True
    """Whether GPU topologies and unhealthy GPUs are read from ConfigMaps."""
    namespace: str = "kube-system"
    """Where these ConfigMaps are."""


class Policies(_Section):
    """Where topology policies and levels are read."""

    enabled: bool = True
    """Whether the ConfigMap with topology policies and levels is watched."""
    namespace: str = "muster-system"
    """Its namespace: Muster's own, because who may write there decides for the whole cluster."""
    name: str = "kai-scheduler-config"
    """Its name; the account's rights must name it too."""
    key: str = "config.yaml"
    """The key that holds them, as YAML."""


class NodeAgents(_Section):
    """Where node agents run."""

    namespace: str = ""
    """Namespace whose agents are believed. Empty: none are. The component node-agent sets it."""


class Rates(_Section):
    """How much may wait to be written to the API server, and how fast it is written, with all tries."""

    queue: Positive = 10_000
    """Events or conditions that may wait; more are dropped and counted."""
    per_s: PerSecond = 50.0
    """Events or conditions in a second, at most."""
    burst: Positive = 100
    """Events or conditions at once after a pause, at most."""
    namespace_queue: Positive = 1_000
    """Events or conditions of one namespace that may wait."""
    namespace_per_s: PerSecond = 20.0
    """Events or conditions of one namespace in a second, at most."""
    namespace_burst: Positive = 50
    """Events or conditions of one namespace at once after a pause, at most."""

    @classmethod
    def of_queue(cls, queue: int) -> Self:
        """Return rates that bound the queue alone."""
        return cls(
            queue=queue,
            per_s=math.inf,
            burst=1,
            namespace_queue=queue,
            namespace_per_s=math.inf,
            namespace_burst=1,
        )


class Events(Rates):
    """How many Kubernetes events may wait and be posted."""

    repeat_after_s: Seconds = 600.0
    """A pod's last event is posted again only after so long."""


class Traces(_Section):
    """Where people look at traces. The OTEL_* environment variables say where Muster sends spans."""

    link: str = ""
    """Address of a trace in your tracing system, with {trace_id} in it, for muster trace."""

    @field_validator("link")
    @classmethod
    def _check_link(cls, link: str) -> str:
        if link and "{trace_id}" not in link:
            raise ValueError("should contain {trace_id}, such as https://jaeger.example/trace/{trace_id}")
        return link


class Conditions(Rates):
    """How many pods may wait to be told, in a condition, which members their gang waits for."""

    enabled: bool = True
    """Whether pods say in a condition which members their gang waits for."""
    queue: Positive = 20_000
    """Pods that may wait to be told."""
    namespace_queue: Positive = 10_000
    """Pods of one namespace that may wait."""
    namespace_per_s: PerSecond = 10.0
    """Pods of one namespace in a second."""


class Planner(_Section):
    """How long one decision may take."""

    slice_s: Seconds = 0.3
    """Processor time for the first try at a gang. Gangs that need longer go to the background planner, while
    others go on."""
    deterministic_time: Seconds = 0.5
    """CP-SAT's work on one decision, in its own deterministic measure (about a second each)."""
    time_limit_s: Seconds = 10.0
    """Wall-clock limit of a background decision. At the limit the planner returns what it has, marked
    `truncated`. 0.3 s later its process is ended."""
    memory_mib: Positive = 1024
    """MiB that one decision may use; the planner's process is ended beyond."""
    most_roles: Positive = 64
    """Roles (pods with equal requests) of one gang; a gang of more is refused."""


with_config(_STRICT)(GangSettings)


class Config(_Section):
    """All settings of `muster serve`."""

    kubeconfig: Path | None = None
    """Path; null: $KUBECONFIG or ~/.kube/config where there is one, else the pod's account."""
    context: str | None = None
    """Context in the kubeconfig; null is its current one."""
    socket: Path = Field(default_factory=default_socket)
    """Unix socket for the shim; its folder is made with mode 0700, the socket with 0600."""
    scheduler_names: Annotated[tuple[str, ...], Field(min_length=1)] = ("muster",)
    """schedulerName of the pods that are ours."""
    gpu_resources: tuple[str, ...] = ("nvidia.com/gpu", "aliyun.com/gpu", "amd.com/gpu")
    """Extended resources that count whole GPUs."""
    nri_nodes: NodeLabel = ""
    """Label, as key=value, of nodes where NVIDIA's NRI plugin gives the planned aliyun.com/gpu: Bindings name
    CDI devices by uuid. Empty: nowhere. docs/devices.md"""
    infer_gangs: dict[KindOfJob, Inferred] = {"default": "warn"}
    """By kind of job (default: all others), whether its pods are a gang without saying so: off, warn (an
    event says how), on. With KAI's keys they always are. docs/kinds.md"""
    inbox: Positive = 10_000
    """Changes that may wait for the gangs before the watches are held."""
    shutdown_s: Seconds = 10.0
    """Time for a clean end after SIGTERM."""
    http: Http = Http()
    page: Page = Page()
    log: Log = Log()
    watch: Watch = Watch()
    pod_groups: PodGroups = PodGroups()
    config_maps: ConfigMaps = ConfigMaps()
    policies: Policies = Policies()
    node_agents: NodeAgents = NodeAgents()
    events: Events = Events()
    conditions: Conditions = Conditions()
    traces: Traces = Traces()
    planner: Planner = Planner()
    gangs: GangSettings = GangSettings()
