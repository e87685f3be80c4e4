"""The scenes of the demo, in order: what is asked for, what is waited for, what is read and shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import replace

from local_cluster.api import Object
from local_cluster.demo import claims, manifests
from local_cluster.demo.facts import (
    Facts,
    HeldGang,
    Outcome,
    PendingGang,
    PlacedGang,
    Seat,
    free_gpus,
    mismatched,
    scheduled_condition,
    seats_of,
)
from local_cluster.demo.firstfit import first_fit, read_node
from local_cluster.demo.matrix import matrix_of
from local_cluster.demo.observer import PODS, Observer, StreamingApi
from local_cluster.demo.show import Show, sentence
from muster.adapters.drawing import Mark, NodePicture

FILLER = "x"


class Story:
    """All scenes on one cluster; what they find out is in `facts`. `between` is called before each scene."""

    def __init__(
        self, api: StreamingApi, observer: Observer, show: Show, between: Callable[[], None]
    ) -> None:
        self._between = between
        self._api, self._observer, self._show = api, observer, show
        self._nodes: list[Object] = api.get("/api/v1/nodes")["items"]
        self.matrices = {node["metadata"]["name"]: matrix_of(node) for node in self._nodes}
        self._topologies = {node.name: node.topology for node in map(read_node, self._nodes)}
        self._letters: dict[str, str] = {}
        self.facts = Facts()

    def tell(self) -> None:
        """Play all scenes, in order."""
        for scene in (
            self.cluster,
            self.pair_on_an_idle_node,
            self.job_of_two_gpus,
            self.pair_on_a_busy_node,
            self.ring_on_a_busy_node,
            self.gang_of_two,
            self.gang_that_does_not_fit,
        ):
            self._between()
            scene()
        pods = self._all_pods()
        self.facts.seats, self.facts.mismatched = seats_of(pods), mismatched(pods)

    # --- scenes -------------------------------------------------------------------------------------

    def cluster(self) -> None:
        """Show the cluster before the first gang."""
        self._show.scene(
            "The cluster",
            "examples/demo/filler.yaml",
            "Three nodes with eight V100 in a cube mesh, two NVSwitch nodes with eight H100. "
            "A letter is the pod that has the GPU; the pods x were placed by Muster just now.",
        )
        fillers = manifests.load("demo/filler.yaml")
        manifests.create(self._api, fillers)
        self._wait_running([pod["metadata"]["name"] for pod in fillers], FILLER)
        self._show.strips(self._pictures(self._topologies))

    def pair_on_an_idle_node(self) -> None:
        """Place two pods of one GPU each."""
        self._show.scene(
            "A PyTorchJob: two pods, one GPU each",
            "examples/ack/pytorchjob-pods.yaml, the ACK document's job",
            "Of the 28 pairs of GPUs in a cube mesh, 8 are joined by two NVLinks, 8 by one, and 12 by none. "
            "Master and worker are one gang: they are placed together.",
        )
        self._place(claims.PAIR, "ack/pytorchjob-pods.yaml", "A", members=2)
        self._show.model()

    def job_of_two_gpus(self) -> None:
        """Place one pod with two GPUs."""
        self._show.scene(
            "A batch Job: one pod, two GPUs",
            "examples/gputopology/test-gpu.yaml, the gputopology document's job",
            "It joins the node that is in use already and leaves the idle nodes whole.",
        )
        self._place(claims.JOB, "gputopology/test-gpu.yaml", "B", members=1)

    def pair_on_a_busy_node(self) -> None:
        """Place two pods where only some GPUs are free."""
        for node in ("v100-2", "v100-3"):
            self._letters[manifests.take_by_hand(self._api, node, list(claims.BUSY))] = FILLER
        self._wait_running([f"busy-{node}" for node in ("v100-2", "v100-3")], FILLER)
        self._show.scene(
            "Two pods on a node where GPUs 0, 3 and 6 are taken",
            "examples/features/pair-on-a-busy-node.yaml",
            "A pod x holds three GPUs of v100-2. The pair gets the widest link among the five left.",
        )
        self._place(claims.SECOND_PAIR, "features/pair-on-a-busy-node.yaml", "C", members=2)

    def ring_on_a_busy_node(self) -> None:
        """Place four pods where only some GPUs are free."""
        self._show.scene(
            "Four pods on a node where GPUs 0, 3 and 6 are taken",
            "examples/features/four-on-a-busy-node.yaml",
            "Four pods exchange data in a ring, which is as fast as its slowest link. One choice of four has "
            "NVLink all the way round.",
        )
        self._place(claims.RING, "features/four-on-a-busy-node.yaml", "D", members=4)

    def gang_of_two(self) -> None:
        """Create half a gang, then the other half."""
        self._show.scene(
            "Half a gang waits and holds nothing",
            "examples/features/gang-of-two.yaml, first the one, then the other pod",
            "Two pods with two GPUs each must start together. The first one is there, the second is not yet.",
        )
        first, second = manifests.load("features/gang-of-two.yaml")
        before = self._free_count()
        manifests.create(self._api, [first])
        name = first["metadata"]["name"]
        event = self._observer.wait_for(
            f"event TopologyWaiting on {name}",
            lambda: self._observer.events(name, "TopologyWaiting"),
        )[-1]
        bound = sum(bool(pod["spec"].get("nodeName")) for pod in self._live(claims.SWITCHED))
        free = self._free_count()
        event_text = f"TopologyWaiting: {sentence(event['message'])}"
        self.facts.held = HeldGang(claims.SWITCHED, 1, 2, bound, event_text, before, free)
        self._show.held(self.facts.held)
        self._show.say_next("Now the second pod is created, and both start, on GPUs that NVSwitch joins:")
        self._place(claims.SWITCHED, "features/gang-of-two.yaml", "E", members=2, objects=[second])
        complete_at = self._observer.first_seen_at[second["metadata"]["name"]]
        self.facts.held = replace(self.facts.held, bound_early=self._observer.bound_at[name] < complete_at)

    def gang_that_does_not_fit(self) -> None:
        """Create a gang that is larger than the free GPUs."""
        free = self._free_count("v100")
        self._show.scene(
            f"A gang of ten where {free} GPUs are free",
            "examples/demo/gang-that-does-not-fit.yaml",
            "Ten one-GPU pods (for aliyun.com/gpu, which the V100 nodes offer) must start together. "
            "They don't fit, so all ten wait, and say why.",
        )
        gang = "too-large"
        would = first_fit(self._nodes, self._all_pods(), manifests.load("demo/gang-that-does-not-fit.yaml"))
        manifests.create(self._api, manifests.load("demo/gang-that-does-not-fit.yaml"))
        first = self._observer.wait_for(
            f"ten pods of {gang} with a condition, and an event",
            lambda: self._refused(gang, 10),
        )
        event = self._unplaceable(first)[-1]
        condition = scheduled_condition(first)
        live = self._live(gang)
        self.facts.pending = PendingGang(
            name=gang,
            example="demo/gang-that-does-not-fit.yaml",
            members=len(live),
            bound=sum(bool(pod["spec"].get("nodeName")) for pod in live),
            free_gpu_count_before=free,
            free_gpu_count_after=self._free_count("v100"),
            condition_reason=condition["reason"],
            condition=sentence(condition["message"]),
            event=f"TopologyUnplaceable: {sentence(event['message'])}",
            first_fit_would_bind_pods=len(would),
        )
        self._show.strips(self._pictures([name for name in self._topologies if name.startswith("v100")]))
        self._show.pending(self.facts.pending)

    # --- what scenes are made of --------------------------------------------------------------------

    def _place(
        self, gang: str, example: str, letter: str, *, members: int, objects: list[Object] | None = None
    ) -> None:
        """Create the objects, wait until the gang runs, and show where it is."""
        earlier = self._all_pods()
        whole = manifests.load(example)
        would = first_fit(self._nodes, earlier, whole)
        before = free_gpus(self._nodes, seats_of(earlier))
        created_at = time.monotonic()
        manifests.create(self._api, whole if objects is None else objects)
        names = self._observer.wait_for(f"{members} pods of {gang}", lambda: self._present(gang, members))
        self._wait_running(names, letter)
        placed_s = max(self._observer.bound_at[name] for name in names) - created_at
        seats = [seat for seat in self.seats() if seat.pod in names]
        gang_placed = PlacedGang(
            name=gang,
            example=example,
            placed_ms=placed_s * 1000,
            free_gpus_before={seat.node: before[seat.node] for seat in seats},
            muster=Outcome.of(seats, self.matrices),
            first_fit=Outcome.of(would, self.matrices),
        )
        self.facts.placed[gang] = gang_placed
        for picture in self._pictures(gang_placed.muster.gpus, marked_letter=letter):
            self._show.node(picture)
        self._show.holders(self._rows(gang_placed.muster.gpus))
        self._show.compare(gang_placed)

    def _wait_running(self, names: Collection[str], letter: str) -> None:
        self._letters |= dict.fromkeys(names, letter)
        aim = f"{', '.join(names)} to run"
        self._observer.wait_for(aim, lambda: all(self._runs(name) for name in names))

    def _runs(self, name: str) -> bool:
        pod = self._observer.pod(name)
        return pod is not None and pod.get("status", {}).get("phase") == "Running"

    def _present(self, gang: str, members: int) -> list[str] | None:
        """Return the names of the gang's pods once there are `members` of them."""
        names = [str(pod["metadata"]["name"]) for pod in self._observer.pods(gang)]
        return names if len(names) == members else None

    def _refused(self, gang: str, members: int) -> Object | None:
        """The first pod of the gang once all are there and say why they wait, None before."""
        pods = self._observer.pods(gang)
        pods_with_reason = [pod for pod in pods if scheduled_condition(pod).get("message")]
        if len(pods_with_reason) < members:
            return None
        return next((pod for pod in pods_with_reason if self._unplaceable(pod)), None)

    def _unplaceable(self, pod: Object) -> list[Object]:
        return self._observer.events(pod["metadata"]["name"], "TopologyUnplaceable")

    def _all_pods(self) -> list[Object]:
        pods: list[Object] = self._api.get(PODS)["items"]
        return pods

    def _live(self, gang: str) -> list[Object]:
        """The gang's pods as the API server has them now."""
        return [pod for pod in self._all_pods() if pod["metadata"]["name"].startswith(gang)]

    def seats(self) -> tuple[Seat, ...]:
        """Return where every pod is, as the API server has it."""
        return seats_of(self._all_pods())

    def free(self) -> dict[str, tuple[int, ...]]:
        """Return the free GPUs by node."""
        return free_gpus(self._nodes, self.seats())

    def _free_count(self, prefix: str = "") -> int:
        return sum(len(gpus) for node, gpus in self.free().items() if node.startswith(prefix))

    def _pictures(self, names: Collection[str], marked_letter: str = "") -> list[NodePicture]:
        pictures = []
        for name in names:
            marks = {
                gpu: Mark(letter, letter == marked_letter)
                for letter, seat in ((self._letters.get(seat.pod, "?"), seat) for seat in self.seats())
                if seat.node == name
                for gpu in seat.gpus
            }
            pictures.append(NodePicture(name, self._topologies[name], marks))
        return pictures

    def _rows(self, nodes: Collection[str]) -> list[tuple[str, Seat]]:
        rows = [(self._letters.get(seat.pod, "?"), seat) for seat in self.seats() if seat.node in nodes]
        return sorted(rows, key=lambda row: (row[0] == FILLER, row[0], row[1].pod))
