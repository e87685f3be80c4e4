"""`muster place` on ResourceSlices, DeviceClasses and claims: decided as the service does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.files.device_manifests import (
    GPU_DRIVER,
    NICS,
    Case,
    allocated,
    device,
    devices,
    domain,
    gpus,
    job,
    model,
    of_class,
    published,
    request,
    running,
    template,
    tray,
)
from tests.files.manifests import Object, decisions, place, write

TWO_MODELS = [tray("n1", gpus=0), tray("n2", gpus=0), gpus("n1", "H100"), gpus("n2", "A100")]
PLAIN = [tray("n1"), tray("n2")]


WAITING = running("w", "", "t", resourceClaimStatuses=[{"name": "c0", "resourceClaimName": "held"}])
WAITING["status"]["phase"] = "Pending"
WAITING["spec"]["schedulerName"] = "muster"
WAITING["metadata"]["labels"] = {"gpu-topology": "g", "gpu-topology-replica": "1"}


CASES = {
    "GPUs of slices, as a resource": Case([*TWO_MODELS, job(2, 4)], "n1 n2", quiet=("DeviceClass",)),
    "GPUs by claims": Case([*TWO_MODELS, template("t", request(count=2)), job(4, 0, "t")], "n1 n1 n2 n2"),
    "GPUs of one model": Case(
        [*TWO_MODELS, template("t", request(count=2, selectors=model("A100"))), job(2, 0, "t")], "n2 n2"
    ),
    "too few GPUs of one model": Case(
        [*TWO_MODELS, template("t", request(count=2, selectors=model("A100"))), job(3, 0, "t")],
        status="unplaceable",
        says="on 1 node resourceClaims match 0 of 4 GPUs",
    ),
    "a selector that can't be read": Case(
        [*TWO_MODELS, template("t", request(selectors=[{"cel": {"expression": "1 > 0"}}])), job(1, 0, "t")],
        "n1",
        note="selector '1 > 0' is not of the form",
    ),
    "tolerations of claims": Case(
        [*TWO_MODELS, template("t", request(tolerations=[{"operator": "Exists"}])), job(1, 0, "t")],
        "n1",
        note="tolerations in claims for its devices (not followed)",
    ),
    "all GPUs of a node": Case(
        [*TWO_MODELS, template("t", request(allocationMode="All")), job(2, 0, "t")], "n1 n2"
    ),
    "the second of two ways": Case(
        [
            *TWO_MODELS,
            template(
                "t",
                {
                    "name": "r",
                    "firstAvailable": [
                        {"name": "five", "deviceClassName": GPU_DRIVER, "count": 5},
                        {"name": "three", "deviceClassName": GPU_DRIVER, "count": 3},
                    ],
                },
            ),
            job(2, 0, "t"),
        ],
        "n1 n2",
    ),
    "GPUs that a claim holds": Case(
        [*TWO_MODELS, allocated("held", "n1", GPU_DRIVER, "gpu-0", "gpu-1"), job(2, 3)], status="unplaceable"
    ),
    "what a claim of a member holds is freed": Case(
        [
            tray("n1", gpus=0),
            gpus("n1", count=1),
            allocated("held", "n1", GPU_DRIVER, "gpu-0", consumer="w"),
            WAITING,
        ],
        "n1",
    ),
    "a tainted GPU": Case(
        [
            *TWO_MODELS[:1],
            published(
                "n1",
                GPU_DRIVER,
                {**device("gpu-0", type="gpu"), "taints": [{"key": "sick", "effect": "NoSchedule"}]},
                device("gpu-1", type="gpu"),
            ),
            job(1, 2),
        ],
        status="unplaceable",
    ),
    "an older generation does not count": Case(
        [
            *PLAIN,
            published("n1", NICS, device("nic-0")),
            published("n1", NICS, generation=2),
            published("n2", NICS, device("nic-0")),
            of_class("nic", NICS),
            template("t", request("nic")),
            job(1, 1, "t"),
        ],
        "n2",
    ),
    "claims where a device plugin serves GPUs": Case(
        [tray("plugin"), *TWO_MODELS, template("t", request(count=4)), job(2, 0, "t")], "n1 n2"
    ),
    "claims without any slice": Case(
        [*PLAIN, template("t", request(count=2)), job(4, 0, "t")],
        "n1 n1 n2 n2",
        note="no ResourceSlice with GPUs is in the input",
    ),
    "claims with slices of network cards alone": Case(
        [*PLAIN, published("n1", NICS, device("nic-0")), template("t", request(count=2)), job(4, 0, "t")],
        "n1 n1 n2 n2",
        note="no ResourceSlice with GPUs is in the input",
    ),
    "the fields of v1alpha3": Case(
        [
            *TWO_MODELS,
            {
                **template("t", {"name": "r", "deviceClassName": GPU_DRIVER, "count": 4}),
                "apiVersion": "resource.k8s.io/v1alpha3",
            },
            job(2, 0, "t"),
        ],
        "n1 n2",
    ),
    "the fields of v1beta1": Case(
        [
            *TWO_MODELS,
            {
                **template("t", {"name": "r", "deviceClassName": GPU_DRIVER, "count": 4}),
                "apiVersion": "resource.k8s.io/v1beta1",
            },
            job(2, 0, "t"),
        ],
        "n1 n2",
    ),
    "slices of v1beta1": Case(
        [
            tray("n1", gpus=0),
            {
                **published(
                    "n1", GPU_DRIVER, {"name": "gpu-0", "basic": {"attributes": {"type": {"string": "gpu"}}}}
                ),
                "apiVersion": "resource.k8s.io/v1beta1",
            },
            job(1, 1),
        ],
        "n1",
    ),
    "a network card beside GPUs": Case(
        [
            *PLAIN,
            published("n2", NICS, device("nic-0")),
            of_class("nic", NICS),
            template("t", request("nic")),
            job(1, 1, "t"),
        ],
        "n2",
    ),
    "too few network cards": Case(
        [
            *PLAIN,
            published("n2", NICS, device("nic-0")),
            of_class("nic", NICS),
            template("t", request("nic")),
            job(2, 1, "t"),
        ],
        status="unplaceable",
        says="deviceclass.resource.kubernetes.io/nic in all: 1 of 2 fits",
    ),
    "a network card as an extended resource": Case(
        [
            *PLAIN,
            published("n2", NICS, device("nic-0")),
            of_class("nic", NICS, extendedResourceName="example.com/nic"),
            template("t", request("nic")),
            job(1, 1, "t"),
        ],
        "n2",
    ),
    "cards that no slice has": Case(
        [*PLAIN, of_class("nic", NICS), template("t", request("nic")), job(2, 4, "t")],
        "n1 n2",
        note="DeviceClass nic: claims for its devices are not followed, since no ResourceSlice",
    ),
    "a class that is not there": Case(
        [*PLAIN, template("t", request("nic")), job(2, 4, "t")],
        "n1 n2",
        note="DeviceClass nic: claims for its devices are not followed, since it is not in the input",
    ),
    "a template that is not there": Case(
        [*PLAIN, job(2, 4, "gone")],
        "n1 n2",
        note="ResourceClaimTemplate default/gone is not in the input: 2 pods are planned without it.",
    ),
    "a claim that is not there": Case(
        [*PLAIN, job(2, 4, "gone", by_name=True)],
        "n1 n2",
        note="ResourceClaim default/gone is not in the input",
    ),
    "a claim that two members name": Case(
        [
            *PLAIN,
            devices("ResourceClaim", "c", {"devices": {"requests": [request("nic")]}}),
            job(2, 1, "c", by_name=True),
        ],
        status="invalid",
        says='resourceClaimName is "c", expected a claim that has its devices before',
    ),
    "who only watches takes no GPU": Case(
        [*TWO_MODELS, template("t", request(adminAccess=True)), job(2, 4, "t")], "n1 n2"
    ),
    "GPUs by resources and by claims": Case(
        [*TWO_MODELS, template("t", request()), job(1, 1, "t")],
        status="invalid",
        says="by resources or by claims",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_claims_are_followed(case: Case, tmp_path: Path) -> None:
    case.check(decisions(write(tmp_path, *case.objects)))


def test_a_pod_with_claims_and_no_gang_is_left_out(tmp_path: Path) -> None:
    lone = running("lone", "", "t")
    lone["spec"]["schedulerName"] = "muster"
    lone["status"]["phase"] = "Pending"
    answer = decisions(write(tmp_path, *TWO_MODELS, template("t", request()), lone))
    assert answer["gangs"] == []
    assert any("1 of them has ResourceClaims" in note for note in answer["notes"])


MALFORMED: dict[str, tuple[Object, str]] = {
    "a ComputeDomain without a template": (
        {**domain(), "spec": {"numNodes": 2}},
        "ComputeDomain default/nccl: spec.channel.resourceClaimTemplate.name: expected, but not given",
    ),
    "a claim of the fields of Kubernetes 1.30": (
        {**WAITING, "spec": WAITING["spec"] | {"resourceClaims": [{"name": "c", "source": {}}]}},
        "spec.resourceClaims[0].source: since Kubernetes 1.31 its fields are those of spec.resourceClaims[0]",
    ),
    "requests that are no list": (
        devices("ResourceClaimTemplate", "t", {"spec": {"devices": {"requests": {"name": "r"}}}}),
        "ResourceClaimTemplate default/t: spec.spec.devices.requests: expected list, got object",
    ),
    "a slice without a name": ({**gpus("n1"), "metadata": {}}, "metadata.name: expected, but not given"),
    "a count that is text": (template("t", request(count="2")), "count: expected integer, got string"),
}


@pytest.mark.parametrize(("wrong", "says"), MALFORMED.values(), ids=MALFORMED)
def test_bad_input_names_the_field(wrong: Object, says: str, tmp_path: Path) -> None:
    result = place(write(tmp_path, *PLAIN, wrong))
    assert result.exit_code == 2
    assert says in result.output


def test_objects_that_are_given_twice(tmp_path: Path) -> None:
    result = place(write(tmp_path, *PLAIN, template("t", request()), template("t", request("nic"))))
    assert result.exit_code == 2
    assert "ResourceClaimTemplate default/t: is given twice" in result.output
