"""What the planner's process is sent: differences, from which it makes the same snapshots."""

from __future__ import annotations

import random
import socket
import time
from dataclasses import replace

import pytest

from muster.adapters.solver import wire
from muster.adapters.solver.replica import AMOUNTS, Difference, OccupancyDifference, Replica, SentState
from muster.domain.clearing import Occupancy, Occupant, Unit
from muster.domain.constraints import Affinity, AntiAffinity, TopologySpread
from muster.domain.levels import Naming
from muster.domain.node import Resources, Usage
from muster.domain.policies import Policies
from muster.domain.request import GangId, Member, Request, Role, TypicalRequest
from muster.domain.snapshot import Snapshot
from muster.gangs.capacity.ledger import Ledger
from muster.placement.cluster.columns import NO_COLUMNS, columns_after
from tests.gangs.world import node


def carried(sent: SentState, replica: Replica, snapshot: Snapshot) -> Snapshot:
    """The snapshot as it is on the other side."""
    return replica.apply(wire.decode(wire.encode(sent.difference(snapshot))))


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_the_replica_holds_the_same_cluster(seed: int) -> None:
    rng, ledger, sent, replica = random.Random(seed), Ledger(), SentState(), Replica()
    before = Snapshot({})
    for step in range(60):
        name = f"n{rng.randrange(12)}"
        match rng.randrange(6):
            case 0:
                ledger.set_node(node(name, rng.choice((2, 4, 8)), {"rack": f"r{rng.randrange(3)}"}))
            case 1:
                ledger.drop_node(name)
            case 2:
                typical = (TypicalRequest(1.0, rng.randrange(1, 9)),)
                naming = Naming(rng.choice(((), ("rack",))))
                ledger.set_policies(Policies(typical=typical, naming=naming))
            case _:
                usage = Usage(f"p{step}", name, Resources(rng.randrange(3), 1, 1), unindexed_gpus=1)
                ledger.bind(f"p{rng.randrange(20)}", rng.choice((None, usage)))
        snapshot = ledger.snapshot()
        after = carried(sent, replica, snapshot)
        assert after == snapshot
        assert list(after.nodes) == list(snapshot.nodes)
        for name in after.nodes.keys() & before.nodes.keys():
            assert (after.nodes[name] is before.nodes[name]) == (after.nodes[name] == before.nodes[name])
        before = after


def test_what_did_not_change_is_not_sent() -> None:
    ledger, sent = Ledger(), SentState()
    for index in range(200):
        ledger.set_node(node(f"n{index:03}", 8))
    assert len(sent.difference(ledger.snapshot()).changed) == 200
    assert sent.difference(ledger.snapshot()) == Difference(())
    ledger.bind("p", Usage("p", "n017", Resources(), gpus=1))
    (changed,) = sent.difference(ledger.snapshot()).changed
    free_gpus = dict(zip(AMOUNTS, changed.amounts, strict=True))["free_gpus"]
    assert (changed.name, changed.node, free_gpus) == ("n017", None, 0b11111110)
    ledger.drop_node("n017")
    difference = sent.difference(ledger.snapshot())
    assert difference.changed == ()
    assert difference.names is not None


def test_nodes_with_equal_links_share_one_topology_on_the_other_side() -> None:
    sent, replica = SentState(), Replica()
    nodes = carried(sent, replica, Snapshot.of([node("a", 8), node("b", 8), node("c", 4)], ())).nodes
    assert nodes["a"].node.topology is nodes["b"].node.topology
    assert len(replica.apply(Difference(())).nodes) == 3


def test_the_columns_of_an_unchanged_snapshot_are_not_made_again() -> None:
    ledger, sent, replica = Ledger(), SentState(), Replica()
    for index in range(200):
        ledger.set_node(node(f"n{index:03}", 8))
    first = carried(sent, replica, ledger.snapshot())
    assert carried(sent, replica, ledger.snapshot()) is first
    columns = columns_after(NO_COLUMNS, first)
    ledger.bind("p", Usage("p", "n017", Resources(), gpus=1))
    later = columns_after(columns, carried(sent, replica, ledger.snapshot()))
    assert later.profile is columns.profile
    assert later.free_count[17] == 7


def test_a_request_with_constraints_arrives_as_it_was_sent() -> None:
    role = Role("w", (Member("u", "p", 1),), Resources(1, 2, 3), room={"a": 1}, scores={"a": 7})
    constraints = (
        AntiAffinity("x", "host", frozenset("w")),
        Affinity("y", "zone", frozenset("w"), existing=frozenset("a")),
        TopologySpread("z", "zone", 1, frozenset("w"), frozenset("w"), {"a": 2}),
    )
    request = Request(GangId("n", "ack", "g", ("o",)), (role,), 1, constraints=constraints)
    assert wire.decode(wire.encode(request)) == request


def test_a_frame_that_nobody_takes_or_sends_ends_in_time() -> None:
    near, far = socket.socketpair()
    with near, far:
        with pytest.raises(TimeoutError):
            wire.receive(near, time.monotonic() + 0.01)
        with pytest.raises(TimeoutError):
            wire.send(near, bytes(1 << 25), time.monotonic() + 0.01)
        far.close()
        with pytest.raises(OSError, match="pipe"):
            wire.send(near, bytes(1 << 25))
    near, far = socket.socketpair()
    with near:
        far.close()
        with pytest.raises(EOFError):
            wire.receive(near)


def occupant(node_name: str, number: int, unit: str = "u") -> Occupant:
    return Occupant(Usage(f"{node_name}-{number}", node_name, Resources(), gpus=1 << number), "", unit)


def carried_occupancy(sent: SentState, replica: Replica, occupancy: Occupancy) -> Occupancy:
    """The occupancy as it is on the other side."""
    message = (replace(occupancy, by_node={}, units={}), sent.occupancy_difference(occupancy))
    return replica.occupancy(*wire.decode(wire.encode(message)))


@pytest.mark.parametrize("seed", range(20))
def test_whatever_changes_the_replica_holds_the_same_occupancy(seed: int) -> None:
    rng, sent, replica = random.Random(seed), SentState(), Replica()
    by_node, units = dict[str, tuple[Occupant, ...]](), dict[str, Unit]()
    for step in range(60):
        name = f"n{rng.randrange(6)}"
        match rng.randrange(4):
            case 0:
                by_node[name] = tuple(occupant(name, number) for number in range(rng.randrange(4)))
            case 1:
                by_node.pop(name, None)
            case 2:
                units[name] = Unit(name, rng.randrange(3), 1)
            case _:
                units.pop(name, None)
        occupancy = Occupancy(dict(by_node), dict(units), step // 10, {"b": step // 20})
        assert carried_occupancy(sent, replica, occupancy) == occupancy


def test_occupants_that_did_not_change_are_not_sent_and_not_made_again() -> None:
    sent, replica = SentState(), Replica()
    by_node, units = {"a": (occupant("a", 0),), "b": (occupant("b", 0),)}, {"u": Unit("u", 0, 2)}
    first = carried_occupancy(sent, replica, Occupancy(by_node, units, 0.0))
    assert carried_occupancy(sent, replica, Occupancy(dict(by_node), dict(units), 0.0)) is first
    changed = {**by_node, "b": (occupant("b", 1),)}
    difference = sent.occupancy_difference(Occupancy(changed, units, 0.0))
    assert difference == OccupancyDifference({"b": changed["b"]}, {})
    later = carried_occupancy(sent, replica, Occupancy(changed, units, 9.0))
    assert (later.now, later.by_node["a"]) == (9.0, first.by_node["a"])
