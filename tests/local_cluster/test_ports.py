"""A program whose port another one takes first is started again, and only then."""

from __future__ import annotations

import pytest

from local_cluster.ports import STARTS, start_on_free_ports


@pytest.mark.parametrize(
    ("failures", "starts", "raised"),
    [
        ([], 1, ""),
        (["listen: Address already in use"], 2, ""),
        (["no such file"], 1, "no such file"),
        (["address already in use", "no such file"], 2, "no such file"),
        (["address already in use"] * 9, STARTS, "address already in use"),
    ],
)
def test_it_starts_again_while_its_port_is_taken(failures: list[str], starts: int, raised: str) -> None:
    failures_left, calls = list(failures), list[str]()

    def start() -> None:
        calls.append("start")
        if failures_left:
            raise RuntimeError(failures_left.pop(0))

    def run() -> None:
        start_on_free_ports(start, lambda: calls.append("stop"))

    if raised:
        with pytest.raises(RuntimeError, match=raised):
            run()
    else:
        run()
    assert calls.count("start") == starts
    assert calls.count("stop") == min(starts, len(failures))
