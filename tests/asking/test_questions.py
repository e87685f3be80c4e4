"""`kubectl gpu-topology`: what it prints, how it finds the service, and what it does without one."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import yaml

from muster import cli, questions
from muster.adapters.asking import show
from muster.adapters.asking.engine import gangs_of, owners_by_node
from muster.adapters.asking.service import NoAnswer, Query, namespace_in_kubeconfig
from muster.adapters.files.decide import Cluster, decide
from muster.adapters.files.run import planner
from muster.adapters.status import nodes_of
from muster.adapters.telemetry.room import Room
from muster.command_line import parameters
from muster.domain.levels import NVLINK
from muster.domain.node import Resources, Usage
from muster.domain.snapshot import Snapshot
from muster.gangs.reporting.places import Owner
from tests.adapters.test_room import MODEL, node
from tests.command import invoke
from tests.gangs.world import node as small_node
from tests.gangs.world import pod

GANG = {
    "namespace": "default",
    "name": "train",
    "phase": "unplaceable",
    "present": 10,
    "needed": 10,
    "bound": 0,
    "priority": 0,
    "created": 0.0,
    "reason": "The gang needs 10 GPUs [red]",
    "causes": [{"kind": "NotEnoughFree", "says": "8 are free\x1b[31m.", "helps": "Wait for 2 more."}],
    "helps": ["2 more free GPUs on v100-1"],
    "clearing": {"says": "the gang would fit if ns/low ended"},
}
EXPLAINED: dict[str, Any] = {
    "gang": GANG,
    "plan": None,
    "refused": [],
    "refused_left_out": 0,
    "timeline": [],
    "timeline_cut": False,
    "known_since": 0.0,
    "trace": {"id": "3c87", "link": ""},
}
NODES = [
    {"name": "a", "model": "H100", "gpus": 8, "free": 6, "takes_pods": True, "domains": {"rack": "r1"}},
    {"name": "b", "model": "H100", "gpus": 8, "free": 3, "takes_pods": True, "domains": {"rack": "r1"}},
    {"name": "c", "model": "H100", "gpus": 8, "free": 8, "takes_pods": False, "domains": {"rack": "r2"}},
    {"name": "d", "model": "A100", "gpus": 8, "free": 1, "takes_pods": True, "domains": {}},
]


@pytest.fixture(autouse=True)
def _no_kubeconfig(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the machine's own kubeconfig out."""
    monkeypatch.setenv("KUBECONFIG", "/absent")


class Handler(BaseHTTPRequestHandler):
    """A service that remembers what it was asked."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path.startswith("/page"):
            self.send_error(404)
            return
        about_gangs = self.path.startswith(("/gangs", "/explain"))
        answer = EXPLAINED if self.path.startswith("/explain") else GANG
        gangs = [] if "name=nothing" in self.path else [answer]
        of_nodes = {"nodes": NODES, "scopes": ["rack", "zone"]}
        body = json.dumps({"ready": True, "gangs": gangs} if about_gangs else of_nodes).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def service() -> Iterator[tuple[str, list[str]]]:
    paths: list[str] = []
    handler = type("Asked", (Handler,), {"asked": paths})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", paths
        server.shutdown()
        thread.join()


def said(*arguments: str, code: int = 0) -> str:
    result = invoke(questions.main, *arguments)
    assert result.exit_code == code, result.output
    return result.output


def test_muster_has_the_same_commands_and_options(service: tuple[str, list[str]]) -> None:
    url = service[0]
    for name, asks in questions.COMMANDS.items():
        about = said(name, "--help")
        texts = [get_args(parameter.annotation)[1].help for parameter in parameters(asks)]
        assert all(text in " ".join(about.split()) for text in texts)
        of_muster = invoke(cli.main, name, "--help").output
        assert of_muster.partition("\n\n")[2] == about.partition("\n\n")[2]
    for arguments in (
        ["why", "team/train-0"],
        ["gangs"],
        ["free", "--for", "4"],
        ["nodes", "-o", "yaml"],
        ["why", "nothing"],
    ):
        assert invoke(cli.main, *arguments, "--url", url) == invoke(questions.main, *arguments, "--url", url)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ([], 0, "Say what blocks a gang, with numbers, and what would help."),
        (["--help"], 0, "Gangs of GPU pods: why one waits"),
        (["wyh", "p"], 2, "invalid choice: 'wyh'"),
        (["why"], 2, "required: NAME"),
        (["gangs", "-o", "xml"], 2, "'xml' is not one of table, json, yaml"),
        (["free", "--for", "-1"], 2, "-1 is less than 0"),
        (["free", "--for", "x"], 2, "'x' is not a number"),
        (["gangs", "--namesp", "x"], 2, "unrecognized arguments"),
    ],
)
def test_what_the_plugin_says_of_its_arguments(arguments: list[str], code: int, text: str) -> None:
    assert text in said(*arguments, code=code)


def test_why_says_what_blocks_and_what_would_help(service: tuple[str, list[str]]) -> None:
    url, paths = service
    lines = said("why", "team/train-0", "--url", url).splitlines()
    assert paths == ["/gangs?namespace=team&name=train-0"]
    assert lines == [
        "default/train is unplaceable: 10 of 10 members here, 0 bound, 0s old",
        r"  NotEnoughFree: 8 are free\x1b[31m.",
        "  The gang would fit if ns/low ended.",
        "  It would help: 2 more free GPUs on v100-1. (tried: the gang fits then)",
        "  It would help: Wait for 2 more.",
    ]


@pytest.mark.parametrize(
    ("present", "needed", "members"),
    [
        (0, 2, "0 of 2 members here"),
        (2, 1, "2 members here, 1 needed"),
        (2, 0, "2 members here"),
        (1, 0, "1 member here"),
    ],
)
def test_why_counts_members_of_a_number_only_if_that_is_not_smaller(
    present: int, needed: int, members: str
) -> None:
    """From a review: an ill-formed gang of unknown size had "2 of 0 members here"."""
    gang = {"namespace": "ns", "name": "g", "phase": "invalid", "present": present, "needed": needed}
    first_line, *_ = show.causes_and_helps({**gang, "bound": 0, "created": 0.0, "reason": ""})
    assert first_line.startswith(f"ns/g is invalid: {members}, 0 bound, ")


def test_a_name_that_no_gang_has_is_an_error(service: tuple[str, list[str]]) -> None:
    output = said("why", "nothing", "-n", "default", "--url", service[0], code=questions.NOT_FOUND)
    assert "no gang in namespace default is named nothing or has such a pod" in output


@pytest.mark.parametrize("command", ["explain", "trace"])
def test_explain_and_trace_ask_the_service_about_one_gang(
    service: tuple[str, list[str]], command: str
) -> None:
    url, paths = service
    assert "default/train is unplaceable" in said(command, "team/train-0", "--url", url)
    alternatives = "&alternatives=1" if command == "explain" else ""
    assert paths == [f"/explain?namespace=team&name=train-0{alternatives}"]
    assert json.loads(said(command, "train", "--url", url, "-o", "json")) == [EXPLAINED]
    assert "is named nothing" in said(command, "nothing", "--url", url, code=questions.NOT_FOUND)
    assert "only a service knows that" in said(command, "train", "--no-service", code=1)


def test_watching_prints_what_changed_and_nothing_else(
    service: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, paths = service
    free = [6, 6, 5]

    def tick(_: float) -> None:
        if len(paths) == len(free):
            raise KeyboardInterrupt
        monkeypatch.setitem(NODES[0], "free", free[len(paths)])

    monkeypatch.setattr("muster.questions.time.sleep", tick)
    printed = said("nodes", "--url", url, "--watch", "-o", "json")
    first, second = printed.replace("]\n[", "]\n\x00[").split("\x00")
    assert len(paths) == 3
    assert [json.loads(text)[0]["free"] for text in (first, second)] == [6, 5]


def test_watching_goes_on_while_a_service_is_away_and_ends_where_there_was_none(
    service: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asks, answers = ["ok", "away", "ok", "end"], iter(range(9))
    real = questions.Asking._ask

    def asked(self: questions.Asking, path: str, query: Query) -> dict[str, Any]:
        match asks[next(answers)]:
            case "away":
                raise NoAnswer("the service restarts")
            case "end":
                raise KeyboardInterrupt
        return real(self, path, query)

    monkeypatch.setattr(questions.Asking, "_ask", asked)
    monkeypatch.setattr("muster.questions.time.sleep", lambda _: None)
    said("gangs", "--url", service[0], "-w", "-o", "json")
    assert next(answers) == len(asks)
    asks[:] = ["away"] * 10
    answers = iter(range(9))
    assert "--watch needs a service" in said("gangs", "--url", service[0], "-w", code=1)
    assert "--watch needs a service" in said("gangs", "--no-service", "-w", code=1)


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_programs_get_what_the_service_says(service: tuple[str, list[str]], output: str) -> None:
    read: Callable[[str], object] = json.loads if output == "json" else yaml.safe_load
    assert read(said("gangs", "--url", service[0], "-o", output)) == [GANG]
    assert read(said("nodes", "--url", service[0], "-o", output)) == NODES


def test_free_gpus_by_domain(service: tuple[str, list[str]]) -> None:
    url = service[0]
    racks = json.loads(said("free", "--for", "4", "--scope", "rack", "--url", url, "-o", "json"))
    assert racks == [
        {"domain": "r1", "model": "H100", "nodes": 2, "gpus": 16, "free": 9, "most_on_a_node": 6, "fit": 2}
    ]
    by_node = json.loads(said("free", "--url", url, "-o", "json"))
    assert [row["domain"] for row in by_node] == ["a", "b", "d"]
    assert "no rack has 100 free GPUs" in said("free", "--for", "100", "--scope", "rack", "--url", url)
    head = said("nodes", "--url", url).splitlines()[0]
    assert head.split() == ["NODE", "MODEL", "FREE", "GPUS", "TAKES", "PODS", "RACK", "OWNERS"]


def test_free_gpus_of_nvlink_domains_inside_nodes() -> None:
    """Labels name the domain of c alone. A pod on d has a GPU and does not say which one."""
    labelled = replace(node("c"), labels={NVLINK.labels[0]: "wide"})
    nodes = [node("a"), node("b", island=4), labelled, node("d")]
    usages = [Usage("u", "b", Resources(), gpus=0b11), Usage("v", "d", Resources(), unindexed_gpus=1)]
    snapshot = Snapshot.of(nodes, usages)
    room = Room(MODEL)
    nodes_shown = msgspec.to_builtins(nodes_of(snapshot, MODEL, room.domains(snapshot)))["nodes"]
    rows = show.free_by_domain(nodes_shown, "nvlink-domain", 0)
    free = {row["domain"]: (row["free"], row["gpus"]) for row in rows}
    assert free == {"a/0": (8, 8), "wide": (8, 8), "b/1": (4, 4), "b/0": (2, 4)}
    assert [row["domain"] for row in show.free_by_domain(nodes_shown, "nvlink-domain", 4)] == [
        "a/0",
        "wide",
        "b/1",
    ]
    largest = dict(room.figures(snapshot).largest)
    assert largest["nvlink-domain", "H100"] == free["a/0"][0]


def test_gangs_in_line_come_first_and_say_what_they_have() -> None:
    line = {"position": 2, "gpus_bound": 0, "gpus_waiting": 16, "nodes": []}
    runs = {"phase": "running", "position": None, "gpus_bound": 8, "gpus_waiting": 0, "nodes": ["a", "b"]}
    gangs = [
        GANG | {"name": "runs"} | runs,
        GANG | {"name": "collects", "phase": "collecting"},  # of a service of the last release
        GANG | {"name": "second"} | line,
        GANG | {"name": "first"} | line | {"position": 1},
    ]
    out = io.StringIO()
    show.gangs(gangs, out)
    head, *lines = out.getvalue().splitlines()
    start = {name: head.index(name) for name in ("GANG", "POSITION", "GPUS", "NODES")}
    shown = [[line[at:].split()[0] for at in start.values()] for line in (lines[0], lines[1], lines[3])]
    assert shown[:2] == [["first", "1", "0/16", "0"], ["second", "2", "0/16", "0"]]
    assert (shown[2][0], *shown[2][2:]) == ("runs", "8/8", "2")
    assert "collects" in lines[2]


def test_nodes_say_which_gangs_have_their_gpus() -> None:
    owners = [{"namespace": "", "gang": "", "gpus": 1}, {"namespace": "ns", "gang": "train", "gpus": 4}]
    out = io.StringIO()
    show.nodes([NODES[0] | {"owners": owners}, NODES[1]], out)
    head, first, second = out.getvalue().splitlines()
    at = head.index("OWNERS")
    assert first[at:] == "other pods: 1, ns/train: 4"
    assert not second[at:]


def test_the_engine_finds_owners_by_what_pods_say() -> None:
    bound = [replace(pod("p0", "big", gpus=2), node="a"), replace(pod("p1", "big", gpus=2), node="a")]
    alone = replace(pod("q", gpus=1), node="a", claim=None)
    gangs_by_node = owners_by_node([*bound, alone, pod("waits", "big", gpus=2)])
    assert gangs_by_node == {"a": (Owner("", "", 1), Owner("ns", "big", 4))}


def test_a_scope_that_is_not_known_is_an_error(service: tuple[str, list[str]]) -> None:
    output = said("free", "--scope", "rakc", "--url", service[0], code=1)
    assert "no scope is named rakc. Did you mean rack? Known are: cluster, rack, zone, node" in output
    assert "no zone has 4 free GPUs" in said("free", "--scope", "zone", "--for", "4", "--url", service[0])


def test_a_service_that_is_away_is_an_error_if_it_was_named() -> None:
    assert "does not answer" in said("gangs", "--url", "http://127.0.0.1:1", code=1)


def test_an_address_of_another_server_is_an_error_that_says_so(service: tuple[str, list[str]]) -> None:
    output = said("gangs", "--url", f"{service[0]}/page", code=1)
    assert (
        "is not Muster's service: /gangs is not there. The page has another port than the service" in output
    )


KUBECTL = """#!{python}
import json, sys
if sys.argv[1:6] == ["config", "view", "--minify", "-o", "jsonpath={{..namespace}}"]:
    print({{"--context=prod": "team", "--context=bare": ""}}[sys.argv[6]], end="")
    sys.exit()
path = sys.argv[sys.argv.index("--raw") + 1]
pod = "/api/v1/namespaces/gpu/pods/muster-abc:8080/proxy"
if path.endswith("/namespaces/gpu/leases/muster"):
    print(json.dumps({{"spec": {{"holderIdentity": "muster-abc_5f"}}}}))
elif path.endswith("/namespaces/outside/leases/muster"):
    print(json.dumps({{"spec": {{"holderIdentity": "vm_5f"}}}}))
elif "/namespaces/outside/pods/vm:8080/" in path:
    sys.exit('Error from server (NotFound): pods "vm" not found')
elif path == pod + "/nodes" and "--context=prod" in sys.argv:
    print(json.dumps({{"nodes": {nodes}}}))
elif path.startswith(pod + "/gangs?"):
    print(json.dumps({{"gangs": [{gang} | {{"reason": path}}]}}))
elif path.startswith(pod + "/explain?"):
    print(json.dumps({{"gangs": [{{"asked": path}}]}}))
else:
    sys.exit(f"unexpected {{path}}")
"""


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kubectl that knows the contexts prod, with namespace team, and bare, without one."""
    program = tmp_path / "kubectl"
    nodes = [node for node in NODES if node["name"] == "d"]
    program.write_text(KUBECTL.format(python=sys.executable, nodes=nodes, gang=GANG))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("kubectl")
def test_the_leader_is_found_by_its_lease_and_asked_through_the_api_server() -> None:
    output = said("nodes", "--context", "prod", "--muster-namespace", "gpu", "-o", "json")
    assert [node["name"] for node in json.loads(output)] == ["d"]


@pytest.mark.usefixtures("kubectl")
@pytest.mark.parametrize(
    ("arguments", "namespace"),
    [
        (["p", "--context", "prod"], "team"),
        (["p", "--context", "bare"], "default"),
        (["p", "--context", "prod", "-n", "mine"], "mine"),
        (["theirs/p", "--context", "prod"], "theirs"),
    ],
)
def test_the_default_namespace_is_that_of_the_context(arguments: list[str], namespace: str) -> None:
    arguments_of_muster = [*arguments, "--muster-namespace", "gpu", "-o", "json"]
    (gang,) = json.loads(said("why", *arguments_of_muster))
    assert gang["reason"].endswith(f"/gangs?namespace={namespace}&name=p")
    (explanation,) = json.loads(said("explain", *arguments_of_muster))
    assert explanation["asked"].endswith(f"/explain?namespace={namespace}&name=p&alternatives=1")


@pytest.mark.usefixtures("kubectl")
def test_a_leader_that_is_no_pod_is_named_with_the_way_out() -> None:
    output = said("explain", "team/p", "--context", "prod", "--muster-namespace", "outside", code=1)
    assert (
        "lease outside/muster names the leader vm, and namespace outside has no such pod. "
        "If the leader runs outside the cluster, name its service by --url"
    ) in output


KUBECONFIG = {
    "current-context": "prod",
    "contexts": [
        {"name": "prod", "context": {"namespace": "team"}},
        {"name": "bare", "context": {}},
        {"name": "broken", "context": None},
    ],
}


@pytest.mark.parametrize(
    ("content", "context", "namespace"),
    [
        (KUBECONFIG, None, "team"),
        (KUBECONFIG, "bare", "default"),
        (KUBECONFIG, "broken", "default"),
        ("[]", None, "of-pod"),
        ("{", None, "of-pod"),
    ],
)
def test_the_engine_reads_the_namespace_from_the_kubeconfig(
    content: object, context: str | None, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, of_pod = tmp_path / "config", tmp_path / "namespace"
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    of_pod.write_text("of-pod")
    monkeypatch.setattr("muster.adapters.asking.service.NAMESPACE_FILE_OF_POD", of_pod)
    assert namespace_in_kubeconfig(file, context) == namespace
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/absent:{file}")
    assert namespace_in_kubeconfig(None, context) == namespace


def test_gangs_of_one_namespace_or_of_all(service: tuple[str, list[str]]) -> None:
    url = service[0]
    for arguments, count in (((), 1), (("-A",), 1), (("-n", "default"), 1), (("-n", "team"), 0)):
        assert len(json.loads(said("gangs", *arguments, "--url", url, "-o", "json"))) == count
    assert len(json.loads(said("gangs", "-n", "team", "-A", "--url", url, "-o", "json"))) == 1


def test_without_a_service_the_engine_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    pods = [*(pod(f"p{i}", "big", of=6) for i in range(6)), pod("q0", "half", of=2)]
    decided = decide(Cluster((small_node("a"),), tuple(pods)), planner(None), lambda: 0.0)
    answers = (gangs_of(decided), {"nodes": NODES})
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("muster.adapters.asking.engine.decide_cluster", lambda *_: answers)
    output = said("why", "ns/p3")
    assert "note: kubectl is not on PATH" in output
    assert "ns/big is unplaceable: 6 of 6 members here, 0 bound" in output
    assert "ClusterTooSmall: The gang needs 6 nvidia.com/gpu for 6 members" in output
    waiting = said("why", "half", "-n", "ns")
    assert "MembersMissing: Waiting for 1 more member: 1 of 2 are here." in waiting
    assert "by the same engine; gangs that run are left out" in waiting
    absent = said("why", "runs", "-n", "ns", code=questions.NOT_FOUND)
    assert "no gang that waits in namespace ns is named runs or has such a pod" in absent
    assert "of gangs that run only a service knows" in absent


def test_nodes_are_shown_with_their_domains_and_what_is_free() -> None:
    usage = Usage("u", "a", node("a").allocatable, gpus=0b11)
    snapshot = Snapshot.of([node("a", "r1"), node("b")], [usage])
    shown = nodes_of(snapshot, MODEL, Room(MODEL).domains(snapshot))
    assert [(view.name, view.model, view.free, dict(view.domains)) for view in shown["nodes"]] == [
        ("a", "H100", 6, {"rack": "r1"}),
        ("b", "H100", 8, {}),
    ]


def test_its_start_imports_nothing_slow(service: tuple[str, list[str]]) -> None:
    slow = {"kubernetes", "ortools", "aiohttp", "grpc", "numpy", "pydantic", "yaml", "typer", "rich", "click"}
    modules = "muster.questions, muster.adapters.asking.service, muster.adapters.asking.show"
    ends = "contextlib.suppress(SystemExit)"
    runs = f"import contextlib, sys, {modules}\nwith {ends}: muster.questions.main()"
    code = f"{runs}\nprint({slow} & sys.modules.keys())"
    command = [sys.executable, "-c", code, "gangs", "--url", service[0]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "default     train" in done.stdout
    assert done.stdout.splitlines()[-1] == "set()"
