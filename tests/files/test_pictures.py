"""What is printed: golden JSON, table and SVG; the same for the same input."""

from __future__ import annotations

import json
import random
from pathlib import Path
from xml.etree import ElementTree

import pytest
from syrupy.assertion import SnapshotAssertion

from muster.adapters.files.showing.svg import WIDTH
from tests.files.manifests import (
    DEMO,
    EXAMPLES,
    Object,
    controller,
    decisions,
    gang,
    node,
    place,
    pod,
    spec,
    template,
    write,
)

SVG = "{http://www.w3.org/2000/svg}"


def story(folder: Path) -> list[str]:
    """One gang of each fate, on the demo's cluster."""
    objects = [
        *gang("too-large", 3, 8),
        pod("lonely-0", "lonely", 2),
        pod("odd-0", "odd", 2),
        pod("odd-1", "odd", 3),
        *gang("cpu-only", 1, 0),
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}},
    ]
    names = [
        f"{name}.yaml" for name in ("ack/pytorchjob", "features/four-on-a-busy-node", "features/gang-of-two")
    ]
    return [str(DEMO), *(str(EXAMPLES / name) for name in names), write(folder, *objects)]


def test_json(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    assert json.dumps(decisions(*story(tmp_path)), indent=2) == snapshot


def test_table(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    result = place(*story(tmp_path))
    assert result.exit_code == 3
    assert "\x1b" not in result.stdout
    assert result.stdout == snapshot


def test_svg(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    result = place(*story(tmp_path), "-o", "svg")
    assert result.exit_code == 3
    assert result.stdout == snapshot


def test_the_order_of_nodes_and_members_changes_nothing(tmp_path: Path) -> None:
    objects = [
        *(node(f"n{i}", 4, f"r{i % 3}") for i in range(9)),
        *(pod(f"busy-{i}", gpus=i % 3, nodeName=f"n{i}") for i in range(9)),
        *gang("g", 12),
        *gang("h", 3, 2),
    ]
    for manifest in objects:
        manifest["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    first = decisions(write(tmp_path, *objects))
    for seed in range(3):
        random.Random(seed).shuffle(objects)
        assert decisions(write(tmp_path, *objects)) == first


def test_no_infinities_and_units(tmp_path: Path) -> None:
    text = place(write(tmp_path, node("a"), pod("x")), "-o", "json").stdout
    answer = json.loads(text, parse_constant=pytest.fail)
    assert answer["version"] == 1
    (gang_shown,) = answer["gangs"]
    assert gang_shown["bandwidth_gb_per_s"] is gang_shown["gap"] is None
    assert gang_shown["timings_ms"]["place"] > 0


CLUSTERS: dict[str, list[Object]] = {
    "hostile names": [
        node("a", labels={"gpu.topology/nvlink-domain": "d"}),
        controller("Job", "batch/v1", "j", template={"spec": spec(1, nodeSelector={"<&>": '"</svg>\x1b'})}),
    ],
    "a node of sixteen": [node("a", 16), pod("x", gpus=12)],
    "no GPUs at all": [node("a", 0), *gang("x", 2, 0)],
    "islands of two": [
        node(
            "a",
            8,
            labels={"nvidia.com/nvswitch.present": "false", "gpu.topology/nvlink-domain-size": "2"},
        ),
        *gang("g", 3),
    ],
    "long names": [node("n" * 250, 8), *gang("g" * 60, 2)],
    "many nodes": [*(node(f"n{i}", 8, f"r{i % 40}") for i in range(200)), *gang("g", 100, 5)],
    "many gangs": [*(node(f"n{i}", 8) for i in range(12)), *(pod(f"p{i}") for i in range(70))],
    "NVL72": [
        *(node(f"n{i}", 4, labels={"gpu.topology/nvlink-domain": f"d{i // 18}"}) for i in range(36)),
        controller("Job", "batch/v1", "j", parallelism=20, template=template("g", 20, 4)),
    ],
}


@pytest.mark.parametrize("name", CLUSTERS)
def test_svg_stays_in_its_frame(name: str, tmp_path: Path) -> None:
    result = place(write(tmp_path, *CLUSTERS[name]), "-o", "svg")
    root = ElementTree.fromstring(result.stdout)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert width == WIDTH <= 1200
    boxes = [r.attrib for r in root.iter(f"{SVG}rect") if r.attrib["width"] != "100%"]
    for box in boxes:
        assert 0 <= float(box["x"]) <= float(box["x"]) + float(box["width"]) <= width
        assert 0 <= float(box["y"]) <= float(box["y"]) + float(box["height"]) <= height
    nodes = [b for b in boxes if b.get("class") == "node"]
    for box in nodes:
        for second_box in nodes:
            assert box is second_box or apart(box, second_box)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_svg_folds_equal_whole_nodes_of_a_rack(tmp_path: Path) -> None:
    racks = [node(f"n{i:02}", 8, f"r{i // 10}") for i in range(20)]
    job = controller("Job", "batch/v1", "j", parallelism=8, template=template("g", 8, 8))
    result = place(write(tmp_path, *racks, job, pod("x", gpus=2)), "-o", "svg")
    titles = [text for text in texts(result.stdout) if "nodes ×" in text]
    assert sorted(titles) == ["10 nodes × 8 GPUs", "8 nodes × 8 GPUs"]
    folded = [title.text or "" for title in ElementTree.fromstring(result.stdout).iter(f"{SVG}title")]
    assert sum("j-" in text and len(text.splitlines()) == 8 for text in folded) == 1, "nodes with their pods"
    assert "8 of 8 free" in texts(result.stdout), "the last whole node beside one used in part is drawn alone"


def test_a_thousand_equal_nodes_are_one_box_a_rack(tmp_path: Path) -> None:
    nodes = [node(f"n{i}", 8, f"r{i % 4}") for i in range(1000)]
    shown = texts(place(write(tmp_path, *nodes, pod("x", gpus=8)), "-o", "svg").stdout)
    assert shown.count("250 nodes × 8 GPUs") == 3
    assert "249 nodes × 8 GPUs" in shown
    assert not any("Not drawn" in text for text in shown)


def test_rails_are_shown_where_the_gang_leaves_some() -> None:
    file = str(EXAMPLES / "clusters/rails.yaml")
    assert "A: network rails 2,3" in place(file).stdout
    drawn = place(file, "-o", "svg").stdout
    assert "network rails 2,3" in texts(drawn)
    assert drawn == (EXAMPLES.parent / "docs/images/rails.svg").read_text(), (
        "the picture of docs/objective.md"
    )
    assert "network rails" not in place(str(DEMO), str(EXAMPLES / "features/one-rack.yaml")).stdout


def test_svg_shows_links_and_which_pod_has_which_gpu(tmp_path: Path) -> None:
    drawn = place(str(DEMO), str(EXAMPLES / "features/four-on-a-busy-node.yaml"), "-o", "svg").stdout
    root = ElementTree.fromstring(drawn)
    links = [title.text for path in root.iter(f"{SVG}path") for title in path.iter(f"{SVG}title")]
    assert links.count("GPU 0 and 3: NV2, 50 GB/s") == 3, "of each node with a cube mesh"
    assert "GPU 0 and 4: SYS, 10 GB/s" not in links
    assert {"NV2 50 GB/s thick, NV1 25 GB/s thin", "NV18 450 GB/s"} <= set(texts(drawn))
    pods = [text for text in texts(drawn) if text.startswith("GPU ") and "ring-of-four" in text]
    assert pods == [f"GPU {gpu}: ring-of-four-{i}" for i, gpu in enumerate((1, 2, 4, 7))]


def apart(a: dict[str, str], b: dict[str, str]) -> bool:
    return any(
        float(p[at]) + float(p[size]) <= float(q[at])
        for p, q in ((a, b), (b, a))
        for at, size in (("x", "width"), ("y", "height"))
    )


@pytest.mark.parametrize("name", CLUSTERS)
def test_tables_of_any_cluster(name: str, tmp_path: Path) -> None:
    result = place(write(tmp_path, *CLUSTERS[name]))
    assert "\x1b" not in result.stdout
    assert "GANG" in result.stdout
