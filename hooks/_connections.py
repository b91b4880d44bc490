"""The TCP connections of this process, and those whose other side no longer acknowledges what was sent.

When a network is cut neither side is told: all wait in the same call, and no call says who is out of reach. The kernel
knows, because it sends again what nobody acknowledged.
"""

import ipaddress
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")
MOST_BYTES = 4 << 20
"""Of a table, for it lists the connections of all processes: some 27,000."""
MOST_LINKS = 1024
"""Of a process; those that are not answered come first."""
ESTABLISHED = "01"
SENDS_AGAIN = "01"
"""Kind of the timer that runs; that of a peer which is only slow to read is another."""
LEAST_RETRIES = 2
"""The first comes after 0.2 s, each later one after twice the time: no answer for more than half a second."""


class Connections(NamedTuple):
    """Connections as ``local>remote``, each side written ``address:port``."""

    established: list[str]
    unanswered: list[str]
    """Those of them whose other side does not acknowledge what was sent."""


NO_CONNECTIONS = Connections([], [])


def connections() -> Connections:
    """Return the connections of this process; empty where the kernel does not tell."""
    own = _own_inodes()
    established: list[str] = []
    unanswered: list[str] = []
    for table in TABLES:
        for fields in _rows(table):
            if fields[3] != ESTABLISHED or fields[9] not in own:
                continue
            link = f"{_address(fields[1])}>{_address(fields[2])}"
            again = fields[5].partition(":")[0] == SENDS_AGAIN and int(fields[6], 16) >= LEAST_RETRIES
            (unanswered if again else established).append(link)
    return Connections([*unanswered, *established][:MOST_LINKS], unanswered[:MOST_LINKS])


def _rows(table: str) -> Iterator[list[str]]:
    try:
        with open(table, encoding="ascii") as file:
            text = file.read(MOST_BYTES)
    except OSError:
        return
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9:
            yield fields


def _own_inodes() -> set[str]:
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = str(Path("/proc/self/fd", descriptor).readlink())
        except OSError:
            continue  # closed meanwhile
        if target.startswith("socket:["):
            found.add(target[len("socket:[") : -1])
    return found


def _address(text: str) -> str:
    """Return ``10.0.0.1:29500`` for the hexadecimal words of the kernel, each in the order of this machine."""
    words, _, port = text.partition(":")
    packed = b"".join(bytes.fromhex(words[at : at + 8])[::-1] for at in range(0, len(words), 8))
    address = ipaddress.ip_address(packed)
    mapped = getattr(address, "ipv4_mapped", None)
    return f"{mapped or address}:{int(port, 16)}"
