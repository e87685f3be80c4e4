"""Which extended resources count as accelerators: those that are not known as something else."""

from __future__ import annotations

import pytest

from muster.dialects.devices.accelerators import is_accelerator

ACCELERATORS = (
    "google.com/tpu", "huawei.com/Ascend910", "huawei.com/Ascend310P-4c.3cpu", "habana.ai/gaudi",
    "aws.amazon.com/neuron", "aws.amazon.com/neuroncore", "intel.com/gpu",
    "gpu.intel.com/i915", "gpu.intel.com/xe",
    "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", "nvidia.com/gpumem", "amd.com/gpu",
    "cambricon.com/vmlu", "hygon.com/dcunum", "iluvatar.ai/vgpu", "kunlunxin.com/xpu", "enflame.com/gcu",
    "qualcomm.com/qaic", "furiosa.ai/rngd", "rebellions.ai/ATOM",
    "tenstorrent.com/wormhole", "xilinx.com/fpga-u280",
    "koordinator.sh/gpu-memory", "aliyun.com/gpu-mem", "example.com/brand-new",
)  # fmt: skip
OTHER_RESOURCES = (
    "cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "pods", "kubernetes.io/batch-cpu",
    "rdma/hca", "rdma/hca_shared_devices_a", "nvidia.com/rdma_shared_device_a", "nvidia.com/mlnxnics",
    "nvidia.com/hostdev", "intel.com/intel_sriov_netdevice", "openshift.io/mlx5", "vpc.amazonaws.com/efa",
    "vpc.amazonaws.com/pod-eni", "networking.gke.io.networks/gpu0.IP",
    "aliyun/erdma", "tke.cloud.tencent.com/eni-ip",
    "devices.kubevirt.io/kvm", "devices.kubevirt.io/vhost-net", "github.com/fuse", "smarter-devices/video0",
    "sgx.intel.com/epc", "sgx.intel.com/enclave", "qat.intel.com/cy", "dsa.intel.com/wq-user-shared",
    "example.com/license", "example.com/disk",
)  # fmt: skip


@pytest.mark.parametrize("resource", ACCELERATORS)
def test_an_accelerator(resource: str) -> None:
    assert is_accelerator(resource)


@pytest.mark.parametrize("resource", OTHER_RESOURCES)
def test_no_accelerator(resource: str) -> None:
    assert not is_accelerator(resource)
