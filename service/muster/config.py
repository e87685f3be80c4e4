"""Declare the service's settings.

Every field has a default that works, and a sentence that documents it. `muster config` prints them all.
`config_sources` reads them from files, the environment and flags.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    field_validator,
)

from muster.dialects.kinds.table import KINDS
from muster.dialects.settings import Mode


def _kind(name: str) -> str:
    if name != "default" and name not in KINDS:
        raise ValueError(f"known are default, {', '.join(KINDS)}")
    return name


def _mode(value: object) -> object:
    """Return the mode that was meant: YAML reads a bare on or off as true or false."""
    return ("on" if value else "off") if isinstance(value, bool) else value


KindOfJob = Annotated[
    str, AfterValidator(_kind), WithJsonSchema({"type": "string", "enum": ["default", *KINDS]})
]
Inferred = Annotated[Mode, BeforeValidator(_mode, json_schema_input_type=Mode | bool)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NodeLabel = Annotated[str, Field(pattern=r"^([A-Za-z0-9._/-]+=[A-Za-z0-9._-]*)?$", max_length=400)]
"""key=value, or empty."""
Positive = Annotated[int, Field(gt=0)]


def default_socket() -> Path:
    """/run/muster/muster.sock for root, else below $XDG_RUNTIME_DIR or a private folder in /tmp."""
    if os.geteuid() == 0:
        return Path("/run/muster/muster.sock")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime or f"/tmp/muster-{os.geteuid()}") / "muster" / "muster.sock"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, validate_default=True)


class Http(_Section):
    """Where the service answers HTTP."""

    host: str = Field(
        default="127.0.0.1", description="Address of what is shown over HTTP: /metrics, /healthz, /gangs …"
    )
    port: int | None = Field(
        default=0,
        ge=0,
        le=65535,
        description="Its port; 0 takes a free one (written beside the socket), null is off.",
    )


class Page(_Section):
    """The page with the map of GPUs and the gangs that wait."""

    host: str = Field(
        default="127.0.0.1",
        description="Address that the page listens on. Elsewhere than on loopback, set `tokens` too.",
    )
    port: int | None = Field(
        default=0, ge=0, le=65535, description="Its port; 0 takes a free one (it is logged), null is off."
    )
    tokens: bool = Field(
        default=False,
        description="Whether a bearer token is needed. The API server checks it, and that its user may get "
        "/muster/page.",
    )
    clients: Positive = Field(default=32, description="Browsers that may be connected; more get 503.")


class Log(_Section):
    """What is logged, and how it is written."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least that is logged."
    )
    format: Literal["auto", "json", "console"] = Field(
        default="auto", description="auto: console on a terminal, else json."
    )


class Watch(_Section):
    """How the API server is watched."""

    page_size: Positive = Field(default=500, description="Objects in one list request.")
    timeout_s: Seconds = Field(
        default=300.0, description="Seconds after which the API server is asked to end a watch."
    )
    read_deadline_s: Seconds = Field(
        default=120.0,
        description="Silence after which a watch is opened again: nothing may have happened, or it is dead.",
    )
    backoff_first_s: Seconds = Field(
        default=0.25, description="First wait before a broken watch is tried again."
    )
    backoff_limit_s: Seconds = Field(
        default=5.0, description="Longest wait between two tries; nothing is planned meanwhile."
    )


class PodGroups(_Section):
    """Whether PodGroups are watched."""

    enabled: bool = Field(
        default=True,
        description="Whether PodGroups, and KAI's Topologies, are watched where their CRDs are installed.",
    )


class ConfigMaps(_Section):
    """Where device plugins publish GPU topologies and health."""

    enabled: bool = Field(
        default=True, description="Whether GPU topologies and unhealthy GPUs are read from ConfigMaps."
    )
    namespace: str = Field(default="kube-system", description="Where these ConfigMaps are.")


class Policies(_Section):
    """Where topology policies and levels are read."""

    enabled: bool = Field(
        default=True, description="Whether the ConfigMap with topology policies and levels is watched."
    )
    namespace: str = Field(
        default="muster-system",
        description="Its namespace: Muster's own, because who may write there decides for the whole cluster.",
    )
    name: str = Field(
        default="kai-scheduler-config", description="Its name; the account's rights must name it too."
    )
    key: str = Field(default="config.yaml", description="The key that holds them, as YAML.")


class NodeAgents(_Section):
    """Where node agents run."""

    namespace: str = Field(
        default="",
        description="Namespace whose agents are believed. Empty: none are. The component node-agent sets it.",
    )


class Events(_Section):
    """How many Kubernetes events may wait and be posted."""

    queue: Positive = Field(
        default=10_000, description="Kubernetes events that may wait; more are dropped and counted."
    )
    per_s: float = Field(default=50.0, gt=0, description="Events posted in a second, at most.")
    burst: Positive = Field(default=100, description="Events posted at once after a pause, at most.")
    namespace_queue: Positive = Field(default=1_000, description="Events of one namespace that may wait.")
    namespace_per_s: float = Field(default=20.0, gt=0, description="Events of one namespace in a second.")
    namespace_burst: Positive = Field(
        default=50, description="Events of one namespace posted at once after a pause, at most."
    )
    repeat_after_s: Seconds = Field(
        default=600.0, description="A pod's last event is posted again only after so long."
    )


class Traces(_Section):
    """Where people look at traces. The OTEL_* environment variables say where Muster sends spans."""

    link: str = Field(
        default="",
        description="Address of a trace in your tracing system, with {trace_id} in it, for muster trace.",
    )

    @field_validator("link")
    @classmethod
    def _names_the_trace(cls, link: str) -> str:
        if link and "{trace_id}" not in link:
            raise ValueError("should contain {trace_id}, such as https://jaeger.example/trace/{trace_id}")
        return link


class Conditions(_Section):
    """The condition of pods whose gang is incomplete."""

    enabled: bool = Field(
        default=True, description="Whether pods say in a condition which members their gang waits for."
    )
    queue: Positive = Field(default=20_000, description="Pods that may wait to be told.")
    per_s: float = Field(default=50.0, gt=0, description="Pods told in a second, at most.")
    burst: Positive = Field(default=100, description="Pods told at once after a pause, at most.")
    namespace_queue: Positive = Field(default=10_000, description="Pods of one namespace that may wait.")
    namespace_per_s: float = Field(default=10.0, gt=0, description="Pods of one namespace in a second.")
    namespace_burst: Positive = Field(
        default=50, description="Pods of one namespace told at once after a pause, at most."
    )


class Planner(_Section):
    """How long one decision may take."""

    slice_s: Seconds = Field(
        default=0.3,
        description="Processor time for the first try at a gang. What is not decided by then is decided by a "
        "second planner in the background, while others go on.",
    )
    deterministic_time: Seconds = Field(
        default=0.5,
        description="CP-SAT's work on one decision, in its own deterministic measure (about a second each).",
    )
    time_limit_s: Seconds = Field(
        default=10.0,
        description="Wall clock for one decision in the background; cut short it says `truncated`; 0.3 s "
        "later it is ended.",
    )
    memory_mib: Positive = Field(
        default=1024, description="MiB that one decision may use; the planner's process is ended beyond."
    )
    most_roles: Positive = Field(
        default=64,
        description="Roles (pods with equal requests) of one gang; a gang of more is refused.",
    )


class Gangs(_Section):
    """How long each phase of a gang may last."""

    waiting_s: Seconds = Field(
        default=3.0, description="How long a gang may be incomplete before an event says so."
    )
    plan_s: Seconds = Field(default=60.0, description="From a plan to its Permit, at most.")
    bind_s: Seconds = Field(default=20.0, description="From Permit to each member seen bound, at most.")
    session_s: Seconds = Field(
        default=10.0,
        description="The same for a Binding of unknown fate, or one that a new session's shim does not know.",
    )
    partial_s: Seconds = Field(default=30.0, description="How long a gang may be partially bound, at most.")
    lost_s: Seconds = Field(
        default=20.0, description="How long the place of a member is kept that a running gang lost and needs."
    )
    partial: Literal["evict", "keep"] = Field(
        default="evict", description="What is done then with its bound members; `keep`: the rest waits."
    )
    member_s: float = Field(
        default=0.02,
        ge=0,
        description="plan_s and bind_s are at least this long for each member; partial_s grows like bind_s.",
    )
    device_s: float = Field(
        default=0.1,
        ge=0,
        description="bind_s is longer by this for each member with devices of a DRA driver.",
    )
    settle_s: float = Field(
        default=0.5,
        ge=0,
        description="After its last pod came, a gang with no fixed number of pods waits so long for more.",
    )
    settle_most_s: float = Field(default=3.0, ge=0, description="So long after the first one, at most.")
    extras_s: float = Field(
        default=300.0,
        ge=0,
        description="How much younger members count that their gang can do without: what other gangs need "
        "comes first for so long.",
    )
    numbers_s: Seconds = Field(
        default=60.0,
        description="How soon pods are told again why nothing fits, where only the numbers in it changed.",
    )
    backfill_after_s: Seconds = Field(
        default=600.0,
        description="After how long what comes free in the best domain is reserved for the oldest gang.",
    )
    backfill_s: Seconds = Field(default=600.0, description="How long it is reserved, at most.")
    backfill_share: float = Field(
        default=0.75, gt=0, le=1, description="Share of the cluster's GPUs that it covers, at most."
    )
    answers_s: Seconds = Field(
        default=3.0,
        description="How long a gang waits for in-tree plugins to say which nodes they refuse it or prefer.",
    )
    exclusion_first_s: Seconds = Field(
        default=1.0,
        description="How long a node that an in-tree plugin refused is left out, once the others have been "
        "tried; 4 times as long each time.",
    )
    status_s: Seconds = Field(
        default=1.0, description="From a change to the status of its PodGroup; as long between two of them."
    )
    exclusion_s: Seconds = Field(
        default=300.0, description="How long such a node is left out at most, however often it refused."
    )
    recheck_s: Seconds = Field(
        default=1.0, description="Pause after two answers in a row that the cluster overtook."
    )
    backoff_s: Seconds = Field(
        default=1.0, description="Pause after a withdrawal; doubles with each in a row."
    )
    backoff_max_s: Seconds = Field(default=30.0, description="Longest such pause.")
    prompt_retries: int = Field(
        default=3, ge=0, description="Withdrawals in a row that are tried again at once."
    )
    patience_s: Seconds = Field(
        default=2.0,
        description="How long one decision may last while other gangs wait for the planner.",
    )
    pause_max_s: Seconds = Field(
        default=600.0,
        description="Longest pause of a gang after the planner was stopped while it decided about it.",
    )
    ahead: int = Field(
        default=768,
        ge=1,
        description="With this many members planned, not permitted, only partially bound gangs are planned. "
        "Half of it for one namespace.",
    )
    alternates: int = Field(
        default=8, ge=0, description="Nodes that each member may use instead of its planned one."
    )


class Config(_Section):
    """All settings of `muster serve`."""

    kubeconfig: Path | None = Field(
        default=None,
        description="Path; null: $KUBECONFIG or ~/.kube/config where there is one, else the pod's account.",
    )
    context: str | None = Field(
        default=None, description="Context in the kubeconfig; null is its current one."
    )
    socket: Path = Field(
        default_factory=default_socket,
        description="Unix socket for the shim; its folder is made with mode 0700, the socket with 0600.",
    )
    scheduler_names: Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        default=("muster",), description="schedulerName of the pods that are ours."
    )
    gpu_resources: tuple[str, ...] = Field(
        default=("nvidia.com/gpu", "aliyun.com/gpu", "amd.com/gpu"),
        description="Extended resources that count whole GPUs.",
    )
    nri_nodes: NodeLabel = Field(
        default="",
        description="Label, as key=value, of nodes where NVIDIA's NRI plugin gives the planned "
        "aliyun.com/gpu: Bindings name CDI devices by uuid. Empty: nowhere. docs/devices.md",
    )
    infer_gangs: dict[KindOfJob, Inferred] = Field(
        default={"default": "warn"},
        description="By kind of job (default: all others), whether its pods are a gang without saying so: "
        "off, warn (an event says how), on. With KAI's keys they always are. docs/kinds.md",
    )
    inbox: Positive = Field(
        default=10_000, description="Changes that may wait for the gangs before the watches are held."
    )
    shutdown_s: Seconds = Field(default=10.0, description="Time for a clean end after SIGTERM.")
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
    gangs: Gangs = Gangs()
