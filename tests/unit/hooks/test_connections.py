"""Connections of a process: which it has, and which the other side does not acknowledge."""

import socket
from pathlib import Path

import pytest

from distdiag.hooks import _connections
from distdiag.hooks._connections import connections

HEADING = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
ADDRESSES = "   0: 012FD50A:1234 022FD50A:5678"


@pytest.fixture
def pair() -> "list[socket.socket]":
    """Two ends of a connection, which never say a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        return [near, far]


def test_both_ends_of_a_connection_belong_together_and_nothing_is_unanswered(pair: list[socket.socket]) -> None:
    near, far = pair
    here, there = (":".join(map(str, end.getsockname())) for end in (near, far))

    with near, far:
        told = connections()

    assert {f"{here}>{there}", f"{there}>{here}"} <= set(told.established)
    assert not {f"{here}>{there}", f"{there}>{here}"} & set(told.unanswered)


@pytest.mark.parametrize(
    ("state", "timer", "retries", "expected"),
    [
        ("01", "01", "00000003", True),
        ("01", "01", "00000001", False),
        ("01", "04", "00000003", False),  # the other side is slow to read
        ("01", "00", "00000000", False),
    ],
)
def test_what_is_sent_again_and_again_is_unanswered(
    state: str, timer: str, retries: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "tcp"
    with socket.socket() as own:
        inode = Path(f"/proc/self/fd/{own.fileno()}").readlink().name.strip("socket:[]")
        table.write_text(f"{HEADING}{ADDRESSES} {state} 00000040:00000000 {timer}:00000050 {retries} 0 0 {inode} 2 0\n")
        monkeypatch.setattr(_connections, "TABLES", (str(table), str(tmp_path / "none")))

        told = connections()

    assert told.established == ["10.213.47.1:4660>10.213.47.2:22136"]
    assert bool(told.unanswered) is expected


def test_connections_of_other_processes_and_those_that_end_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "tcp"
    with socket.socket() as own:
        inode = Path(f"/proc/self/fd/{own.fileno()}").readlink().name.strip("socket:[]")
        timed = "00000040:00000000 01:00000050 00000003 0 0"
        table.write_text(f"{HEADING}{ADDRESSES} 01 {timed} 1 2 0\n{ADDRESSES} 06 {timed} {inode} 2 0\n")
        monkeypatch.setattr(_connections, "TABLES", (str(table),))

        told = connections()

    assert told == ([], [])


def test_addresses_of_the_newer_kind_are_read_and_old_ones_in_them_as_old_ones() -> None:
    assert _connections._address("00000000000000000000000001000000:0050") == "::1:80"
    assert _connections._address("0000000000000000FFFF0000012FD50A:0050") == "10.213.47.1:80"
