"""Each rank of a program on a host of its own: with a name, a network, and a cable to a switch that may be slow.

Hosts are namespaces that their ranks make and that end with them. That needs the rights of an administrator, the
commands ``ip`` and ``tc``, and the token bucket of Linux.
"""

import ctypes
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

CLONE_NEWUTS, CLONE_NEWNET = 0x04000000, 0x40000000
NETWORK = "10.213.48"
"""Seen by nobody but the ranks."""
SWITCH, CABLE = "switch", "cable"
"""Devices: the one of rank 0, who has the switch on its host, and the ones of the others."""
CAP_SECONDS = 60.0
PROBE = f"ip link add {SWITCH} type bridge && ip link add {CABLE} type veth peer name port && tc qdisc add dev {CABLE} "


def are_possible() -> bool:
    """Return whether hosts with slow cables can be made here."""
    if not all(shutil.which(command) for command in ("ip", "tc", "unshare")):
        return False
    probe = ["unshare", "--net", "--uts", "sh", "-c", PROBE + _bucket(1)]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def move_to_own_host(rank: int, world: int, *, slow: int, megabits: int) -> None:
    """Give the calling process, in the working directory of its job, a host; the cable of one rank carries less."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUTS | CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "a host of its own is not allowed")
    socket.sethostname(f"node{rank}")
    _run("ip link set lo up")
    if rank == 0:
        _make_switch(world, slow, megabits)
    else:
        _ask_for_cable(rank)
    device = CABLE if rank else SWITCH
    if rank == slow:
        _run(f"tc qdisc add dev {device} {_bucket(megabits)}")
    _run(f"ip addr add {NETWORK}.{rank + 1}/24 dev {device}")
    _run(f"ip link set {device} up")
    os.environ.update(GLOO_SOCKET_IFNAME=device, MASTER_ADDR=f"{NETWORK}.1")


def _make_switch(world: int, slow: int, megabits: int) -> None:
    _run(f"ip link add {SWITCH} type bridge")
    for rank in range(1, world):
        asked = Path(f"{rank}.host")
        _until(asked.exists)
        _run(f"ip link add port{rank} type veth peer name {CABLE} netns {asked.read_text()}")
        if rank == slow:
            _run(f"tc qdisc add dev port{rank} {_bucket(megabits)}")
        _run(f"ip link set port{rank} master {SWITCH} up")


def _ask_for_cable(rank: int) -> None:
    """Tell rank 0 the process whose network gets a cable, and wait for that."""
    asking = Path(f"{rank}.asking")
    asking.write_text(str(os.getpid()))
    asking.rename(f"{rank}.host")
    _until(lambda: CABLE in (name for _, name in socket.if_nameindex()))


def _bucket(megabits: int) -> str:
    return f"root tbf rate {megabits}mbit burst 128kb latency 500ms"


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + CAP_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the other ranks did not come")
        time.sleep(0.02)


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True)
