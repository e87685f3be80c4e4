"""The link between this machine and a real node: two ends of a veth, an address and a route.

All of it hangs on the link, and the link on the node's network namespace: when the node's last process is
gone, the kernel removes them. No bridge, no firewall rule and no setting of the whole machine is needed.
"""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

from local_cluster.real.configuration import MACHINE, NUMBERS, Address

FORWARDING = "/proc/sys/net/ipv4/conf/{link}/forwarding"
PATIENCE_S = 60


class NetworkError(RuntimeError):
    """A link could not be made. The text has what `ip` said."""


def make_link(link: str, inner: str) -> Address:
    """Make the link, with both ends here, and return addresses that no other node of the machine has."""
    remove_link(link)  # the kernel may not have removed that of a killed keeper yet
    ip("link", "add", link, "type", "veth", "peer", "name", inner)
    try:
        ip("address", "add", f"{MACHINE}/32", "dev", link)
        ip("link", "set", link, "up")
        # pods of two nodes reach each other through this machine; the setting goes with the link
        Path(FORWARDING.format(link=link)).write_text("1")
        return _reserve(link)
    except BaseException:
        remove_link(link)
        raise


def _reserve(link: str) -> Address:
    """The route reserves the addresses: the kernel takes each only once."""
    for number in random.sample(NUMBERS, len(NUMBERS)):
        address = Address(number)
        if _reserved(address, link):
            return address
    raise NetworkError(f"all {len(NUMBERS)} networks of 198.19.0.0/16 are in use")


def _reserved(address: Address, link: str) -> bool:
    route = ("route", "add", address.subnet, "via", address.node, "dev", link, "onlink")
    answer = _run(*route)
    if answer.returncode != 0 and "File exists" not in answer.stderr:
        raise NetworkError(f"ip {' '.join(route)}: {answer.stderr.strip()}")
    return answer.returncode == 0


def move(inner: str, pid: int) -> None:
    """Give the inner end to the network namespace of a process, as eth0."""
    ip("link", "set", inner, "netns", str(pid), "name", "eth0")


def remove_link(link: str) -> None:
    """Remove the link, its addresses and its route; nothing when it is gone."""
    _run("link", "delete", link)


def links(prefix: str) -> list[str]:
    """Return the names of this machine's links that begin so."""
    return sorted(path.name for path in Path("/sys/class/net").glob(f"{prefix}*"))


def ip(*arguments: str) -> None:
    """Run `ip`; raise NetworkError when it fails."""
    answer = _run(*arguments)
    if answer.returncode != 0:
        raise NetworkError(f"ip {' '.join(arguments)}: {answer.stderr.strip()}")


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
