"""Commands for those who run a cluster: `muster preflight` and `muster node-agent`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from muster.command_line import USAGE, Command, Context, Failed, Kubeconfig, Option


class Output(StrEnum):
    """How `muster preflight` prints."""

    TABLE = "table"
    JSON = "json"


def preflight(
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    output: Annotated[Output, Option(("--output", "-o"), help="How to print.")] = Output.TABLE,
) -> int:
    """Check whether a cluster has what Muster needs: before it is installed, and afterwards.

    It reads version, rights, policies, GPUs, labels, other schedulers and
    clocks, and changes nothing.

    Exit code: 0 no error was found (there may be warnings); 3 an error;
    1 the cluster does not answer.

    Examples:

        muster preflight
        muster preflight --context prod -o json | jq '.findings[] | select(.level == "error")'
    """
    from muster.adapters.kube.client import KubeError
    from muster.adapters.preflight import report

    try:
        answer = report.preflight(kubeconfig, context)
    except KubeError as problem:
        raise Failed(str(problem)) from None
    if output is Output.JSON:
        print(report.as_json(answer))
    else:
        report.show(answer)
    return 0 if answer["ready"] else report.FAILED


GpuSource = Annotated[
    str,
    Option(
        env="MUSTER_GPUS",
        help="Where the GPUs are known from: nvml, or matrix:FILE with what nvidia-smi topo -m printed.",
        metavar="SOURCE",
    ),
]
IsolationLibrary = Annotated[
    str,
    Option(
        env="MUSTER_ISOLATION_LIBRARY",
        help="Path on the node of a library that limits GPU memory (HAMi-core's libvgpu.so); it is not "
        "part of Muster.",
        metavar="FILE",
    ),
]


def node_agent(
    node: Annotated[str, Option(env="NODE_NAME", help="Name of this node.", metavar="NAME")],
    gpus: GpuSource = "nvml",
    isolation_library: IsolationLibrary = "",
    cdi: Annotated[
        bool,
        Option(
            env="MUSTER_CDI",
            help="Also name the GPUs by CDI (nvidia.com/gpu=UUID), which NVIDIA's toolkit has to describe.",
        ),
    ] = True,
    kubelet: Annotated[Path, Option(help="The kubelet's folder on this node.", metavar="FOLDER")] = Path(
        "/var/lib/kubelet"
    ),
    probe_port: Annotated[
        int, Option(help="Port for the kubelet's gRPC probe; 0 for none.", metavar="PORT", min=0, max=65535)
    ] = 0,
    log_level: Annotated[str, Option(help="debug, info, warning or error.", metavar="LEVEL")] = "info",
) -> int:
    """Give the containers of one node exactly the GPUs that were planned.

    It runs on each node with GPUs, as a pod of a DaemonSet
    (scheduler-config/node-agent), with the account of that pod.

    It offers what the node's label ack.node.gpu.schedule asks for:
    aliyun.com/gpu with `topology`, aliyun.com/gpu-mem with `share` or
    `cgpu`, nothing with any other value. A container gets the GPUs that its
    pod's Binding names. Where that can't be, its pod fails with the reason
    (UnexpectedAdmissionError), and gets no other GPU.

    On nodes with the label gpu.topology/node-agent=second-endpoint it offers
    nothing itself: it is a second endpoint for nvidia.com/gpu, and NVIDIA's
    device plugin stays. Pods without a plan get that plugin's choice.

    It also writes on its node how the GPUs are linked (GPU_TOPOLOGY), which
    of them are unhealthy, and labels of gpu.topology/. docs/devices.md has
    all of it.

    Examples:

        muster node-agent --node gpu-7                       with NVIDIA's driver
        muster node-agent --gpus matrix:/etc/muster/gpus.txt    without GPUs
        muster node-agent --isolation-library /usr/local/vgpu/libvgpu.so
    """
    if log_level.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise Failed(f"--log-level {log_level}: expected debug, info, warning or error", USAGE)
    from muster.adapters.agent.process import main

    return main(node, gpus, isolation_library, cdi, kubelet, probe_port, log_level.upper())


COMMANDS: dict[str, Command] = {"preflight": preflight, "node-agent": node_agent}
