"""A message with the wrong partner is told apart from one whose other side was forgotten."""

from pathlib import Path

from distdiag.analyzers import diagnose
from distdiag.findings import Report
from distdiag.run import load
from tests.logs import Logs, RankLog

LINE = "ring.py:8 exchange"
FORGOTTEN = "Whether rank 1 forgot it or the other posted one too many is not known."


def exchange(rank: RankLog, to: int, source: int) -> None:
    """Send and receive, both of which end."""
    rank.send(to, LINE)
    rank.recv(source, LINE)
    rank.all_reduce("train.py:5 main")


def ring(rounds: int) -> Logs:
    logs = Logs(world_size=4)
    for rank in logs:
        for _ in range(rounds):
            exchange(rank, (rank.rank + 1) % 4, (rank.rank - 1) % 4)
    return logs


def stuck(logs: Logs, tmp_path: Path, *, to: int, waits_for: int = 2) -> Report:
    """Rank 2 sends to somebody; rank 3 waits for a rank; the others are through and wait in the next call."""
    logs[2].send(to, LINE, pending=True)
    logs[3].send(0, LINE)
    logs[3].recv(waits_for, LINE, pending=True)
    for rank in (logs[0], logs[1]):
        rank.send((rank.rank + 1) % 4, LINE)
        rank.recv((rank.rank - 1) % 4, LINE)
        rank.all_reduce("train.py:5 main", pending=True)
    for rank in logs:
        rank.sleep(120)
        rank.pulse("train.py:5 main" if rank.rank < 2 else LINE)
    logs.write(tmp_path)
    return diagnose(load(tmp_path))


def test_a_message_to_the_wrong_neighbour_is_its_senders_fault(tmp_path: Path) -> None:
    verdict = stuck(ring(2), tmp_path, to=1).verdict

    assert (verdict.name, verdict.culprits, verdict.cause) == ("p2p-unmatched", (2,), "wrong-partner")
    assert "for the first time, at a line that 2 times before served rank 3, which waits for it" in verdict.summary
    assert verdict.site == "ring.py:8"


def test_a_first_message_shows_nothing_of_where_it_should_have_gone(tmp_path: Path) -> None:
    verdict = stuck(ring(0), tmp_path, to=1).verdict

    assert verdict.culprits == (1,)
    assert FORGOTTEN in verdict.summary


def test_a_partner_that_was_served_before_may_have_left_its_side_out(tmp_path: Path) -> None:
    logs = ring(2)
    logs[2].send(1, LINE)
    logs[1].recv(2, LINE)

    verdict = stuck(logs, tmp_path, to=1).verdict

    assert verdict.culprits == (1,)
    assert FORGOTTEN in verdict.summary


def test_nobody_is_the_right_partner_where_nobody_waits_for_it(tmp_path: Path) -> None:
    verdict = stuck(ring(2), tmp_path, to=1, waits_for=0).verdict

    assert verdict.cause != "wrong-partner"
