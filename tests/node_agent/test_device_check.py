"""`make device-check` with a fake driver and a fake nvidia-smi: what differs is told, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from checks.devices import __main__ as command
from checks.devices import footprint, smi
from checks.devices.smi import NoGpuError
from checks.devices.table import DIFFERS, FIGURE, SAME, UNKNOWN, Row, rows_of
from local_cluster.patience import HANG_S
from muster.adapters.agent import nvml
from tests.adapters.fake_nvml import Card, FakeNvml

CLUSTER = "00112233-4455-6677-8899-aabbccddeeff"
TABLE = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV2\tSYS\tPIX\t0-31\t0\t\tN/A
GPU1\tNV2\t X \tSYS\tSYS\t0-31\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tSYS\t32-63\t1\t\tN/A
NIC0\tPIX\tSYS\tSYS\t X \t\t\t

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
"""
LISTED = """\
0, GPU-a, 00000000:01:00.0, NVIDIA H100 80GB HBM3, 81920
1, GPU-b, 00000000:02:00.0, NVIDIA H100 80GB HBM3, 81920
2, GPU-c, 00000000:03:00.0, NVIDIA H100 80GB HBM3, 81920
"""
ALL_OF_IT = f"""\
GPU 00000000:01:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Fabric
        State                             : Completed
        Status                            : Success
        CliqueId                          : 7
        ClusterUUID                       : {CLUSTER}
        Health
            Bandwidth                     : Full
    Processes                             : None
"""


class Smi:
    """Answers as nvidia-smi does, in place of it."""

    def __init__(self, listed: str = LISTED, table: str = TABLE, all_of_it: str = "") -> None:
        self.answers = {"--query-gpu": listed, "topo": table, "-q": all_of_it}

    def __call__(self, *arguments: str) -> str:
        return self.answers[arguments[0].partition("=")[0]]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Three GPUs as nvidia-smi has them. Two NVLinks join the first two."""
    a, b, c = Card("GPU-a", 1), Card("GPU-b", 2), Card("GPU-c", 3)
    a.links, b.links = [b, b], [a, a]
    fake = FakeNvml([a, b, c])
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(nvml, "pynvml", fake)
    a.numa_nodes, b.numa_nodes, c.numa_nodes = (0,), (0,), (1,)
    monkeypatch.setattr(command, "_footprint", lambda: [Row("agent's memory", FIGURE, "53 MiB")])
    return fake


def ended(ask: Smi) -> dict[str, str]:
    """Return how each row ended."""
    return {row.what: row.ended for row in command.all_rows(smi.cards(ask), ask)}


def test_a_machine_whose_tools_agree_differs_in_nothing(
    driver: FakeNvml, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(Smi()) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    lines = printed.out.splitlines()
    assert lines[0].split() == ["what", "result"]
    assert "links                             same         3 pairs: NV2, SYS" in lines
    assert "container sees                    same         GPU-c,GPU-b,GPU-a" in lines
    assert lines[-2].startswith("not checked here: ")
    assert "a GPU that fails or vanishes" in lines[-1]
    assert set(ended(Smi()).values()) <= {SAME, UNKNOWN, FIGURE}


WRONG: dict[str, tuple[Smi, list[str]]] = {
    "other links": (Smi(table=TABLE.replace("NV2", "NV4")), ["links"]),
    "a link in one direction": (Smi(table=TABLE.replace("GPU1\tNV2", "GPU1\tPIX")), ["links"]),
    "another NUMA node": (Smi(table=TABLE.replace("32-63\t1", "32-63\t0")), ["NUMA nodes"]),
    "other memory": (Smi(LISTED.replace("81920", "40960")), ["memory in GiB"]),
    "another product": (Smi(LISTED.replace("H100", "A100")), ["product"]),
    "a domain": (Smi(all_of_it=ALL_OF_IT), ["NVLink domain over nodes"]),
    "another order": (
        Smi(LISTED.replace("a, 00000000:01", "a, 00000000:09")),
        ["nvidia-smi counts by PCI address", "the agent counts by PCI address", "NVML counts by PCI address"],
    ),
    "a GPU less": (
        Smi("\n".join(LISTED.splitlines()[:2])),
        ["GPUs", "the agent counts by PCI address", "NVML counts by PCI address", "memory in GiB"],
    ),
    "a smaller table": (Smi(table="\tGPU0\nGPU0\t X \n"), ["links"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_differs_is_named_and_the_status_says_so(
    driver: FakeNvml, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ask, rows = WRONG[name]
    assert command.main(ask) == 1
    assert capsys.readouterr().err.startswith(f"differs: {', '.join(rows)}. nvidia-smi topo -m says:")
    assert [title for title, how in ended(ask).items() if how == DIFFERS] == rows


def test_nvmls_own_order_is_told_where_it_is_another(driver: FakeNvml) -> None:
    driver.cards.reverse()
    assert [title for title, how in ended(Smi()).items() if how == DIFFERS] == ["NVML counts by PCI address"]


def test_a_domain_of_both_is_the_same(driver: FakeNvml) -> None:
    for card in driver.cards:
        card.fabric = (bytes.fromhex(CLUSTER.replace("-", "")), 7)
    assert ended(Smi(all_of_it=ALL_OF_IT))["NVLink domain over nodes"] == SAME
    assert ended(Smi())["NVLink domain over nodes"] == DIFFERS


def test_a_sick_gpu_is_told_and_the_plugin_gives_it_to_nobody(driver: FakeNvml) -> None:
    reader = nvml.Nvml()
    reader.read()  # it watches for errors from here on
    driver.events.append((driver.cards[1], 79))
    assert ended(Smi())["health"] == DIFFERS


def test_gpus_without_events_and_one_gpu_leave_rows_unchecked(driver: FakeNvml) -> None:
    driver.cards[:] = [replace(driver.cards[2], old=True)]
    single_gpu = Smi(
        "0, GPU-c, 00000000:03:00.0, NVIDIA H100 80GB HBM3, 81920", "\tGPU0\tCPU Affinity\nGPU0\t X \t0-31\n"
    )
    endings = ended(single_gpu)
    assert {title for title, how in endings.items() if how == UNKNOWN} >= {
        "links", "NUMA nodes", "critical errors are told",
    }  # fmt: skip
    assert DIFFERS not in endings.values()


def test_without_a_driver_it_says_so_and_goes_on(driver: FakeNvml) -> None:
    driver.driver = False
    rows = {row.what: row for row in command.all_rows(smi.cards(Smi()), Smi())}
    assert rows["nvidia-smi counts by PCI address"].ended == SAME
    for title in ("facts of the agent", "device plugin"):
        assert rows[title].ended == UNKNOWN
        assert "is NVIDIA's driver on this node" in rows[title].text


@pytest.mark.parametrize("why", ["there is no nvidia-smi", "nvidia-smi lists no GPU"])
def test_without_a_gpu_nothing_is_checked_and_nothing_is_wrong(
    why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(*_: str) -> str:
        if "lists" in why:
            return ""
        raise NoGpuError(why)

    assert command.main(ask) == 0
    assert capsys.readouterr().out == f"no NVIDIA GPU here, so nothing is checked: {why}\n"


def test_time_that_is_up_ends_it_with_what_is_known(
    driver: FakeNvml, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> Iterator[Row]:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_protocol", interrupted)
    assert command.main(Smi()) == 0
    printed = capsys.readouterr().out
    assert "3 pairs: NV2, SYS" in printed
    assert "what comes after this             not checked  time was up" in printed


def test_a_part_that_breaks_is_a_row() -> None:
    def breaks() -> Iterator[Row]:
        yield Row("first", SAME)
        raise pynvml.NVMLError_Unknown

    assert [row.ended for row in rows_of("part", breaks)] == [SAME, DIFFERS]


def test_missing_packages_are_named_with_what_brings_them(tmp_path: Path) -> None:
    """With this machine's Python alone, and an nvidia-smi that knows three GPUs."""
    (tmp_path / "listed").write_text(LISTED)
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\ncat {tmp_path}/listed\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-S", "-m", "checks.devices"],
        cwd=root,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": f"{root}:{root}/service"},
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG_S,
    )
    assert "nvidia-smi counts by PCI address  same" in done.stdout
    lacking = "missing: nvidia-ml-py, grpcio, betterproto2, msgspec: `make device-packages` elsewhere"
    assert [
        line.partition("not checked")[2].strip()[: len(lacking)] for line in done.stdout.splitlines()[2:5]
    ] == ([lacking] * 3)


def test_an_agent_at_rest_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "gpus.txt"
    file.write_text(TABLE)
    memory, share = footprint.measured(f"matrix:{file}", 0.1)
    assert (memory.ended, share.ended) == (FIGURE, FIGURE)
    assert memory.text.partition(" MiB")[0].isdigit()
