"""Which side of a message without its other half differs from the steps before, and receives from any rank."""

from collections.abc import Collection
from pathlib import Path

from distdiag.analyzers import diagnose
from distdiag.findings import Report, Verdict
from tests.logs import Logs, RankLog

LINE, STEP = "halo.py:8 exchange", "train.py:5 main"
COLLECT, REPORT = "server.py:4 collect", "worker.py:6 report"


def verdict_of(logs: Logs, tmp_path: Path) -> Verdict:
    for rank in logs:
        rank.pulses(None, seconds=90.0)
    report: Report = diagnose(logs.load(tmp_path))
    return report.verdict


def exchanged(steps: int, world_size: int = 4) -> Logs:
    """Neighbours on a line exchange one message in each step."""
    logs = Logs(world_size=world_size)
    for rank in logs:
        for _ in range(steps):
            halo(rank, world_size)
            rank.all_reduce(STEP)
            rank.end_step()
    return logs


def halo(rank: RankLog, world_size: int, without: Collection[int] = ()) -> None:
    for neighbour in (rank.rank - 1, rank.rank + 1):
        if 0 <= neighbour < world_size and neighbour not in without:
            rank.send(neighbour, LINE)
            rank.recv(neighbour, LINE)


def with_corner(steps: int, tmp_path: Path) -> Verdict:
    """Rank 1 exchanges with rank 3 as well, as if the line were a ring."""
    logs = exchanged(steps)
    for rank in logs:
        halo(rank, 4)
        if rank.rank == 1:
            rank.send(3, LINE, pending=True)
        else:
            rank.all_reduce(STEP, pending=True)
    return verdict_of(logs, tmp_path)


def test_a_message_more_than_in_each_step_before_is_its_senders_fault(tmp_path: Path) -> None:
    verdict = with_corner(2, tmp_path)

    assert (verdict.name, verdict.culprits, verdict.cause) == ("p2p-unmatched", (1,), "message-too-many")
    assert (verdict.site, verdict.step, verdict.victims) == ("halo.py:8", 2, (0, 2, 3))
    assert "posted 1 send to rank 3 in step 2, none in each of the 2 steps before" in verdict.summary


def test_one_step_shows_no_habit(tmp_path: Path) -> None:
    verdict = with_corner(1, tmp_path)

    assert verdict.cause is None
    assert "is not known" in verdict.summary


def test_a_message_less_than_in_each_step_before_is_left_out(tmp_path: Path) -> None:
    logs = exchanged(3)
    for rank in logs:
        if rank.rank == 2:
            halo(rank, 4, without=(1,))
        elif rank.rank == 1:
            rank.send(0, LINE)
            rank.recv(0, LINE)
            rank.send(2, LINE, pending=True)
            continue
        else:
            halo(rank, 4)
        rank.all_reduce(STEP, pending=True)
    verdict = verdict_of(logs, tmp_path)

    assert (verdict.name, verdict.culprits, verdict.cause) == ("p2p-unmatched", (2,), "message-left-out")
    assert "rank 2 posted 0 receives from rank 1 in step 3, 1 receive in each of the 3 steps before" in verdict.summary


def test_messages_that_never_were_equally_many_tell_nothing(tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    for rank in logs:
        for number in range(3):
            for _ in range(number):
                rank.send(1, LINE) if rank.rank == 0 else rank.recv(0, LINE)
            rank.all_reduce(STEP)
            rank.end_step()
    logs[0].send(1, LINE, pending=True)
    logs[1].all_reduce(STEP, pending=True)

    assert verdict_of(logs, tmp_path).cause is None


# ---- messages from any rank ---------------------------------------------------------------------------------------
def collected(steps: int) -> Logs:
    """Rank 0 takes a result of each other rank, in whatever order they come."""
    logs = Logs(world_size=4)
    for rank in logs:
        for _ in range(steps):
            collect(rank, 3)
            rank.all_reduce(STEP)
            rank.end_step()
    return logs


def collect(rank: RankLog, results: int) -> None:
    if rank.rank:
        rank.send(0, REPORT)
        return
    for _ in range(results):
        rank.call("recv_any_source", COLLECT, p2p=True)


def wait_for_any(rank: RankLog) -> None:
    rank.call("recv_any_source", COLLECT, p2p=True, pending=True)


def test_who_sends_fewer_than_before_to_one_that_takes_any_is_named(tmp_path: Path) -> None:
    logs = collected(2)
    for rank in logs.but(0, 2):
        collect(rank, 0)
    collect(logs[0], 2)
    wait_for_any(logs[0])
    for rank in logs.but(0):
        rank.all_reduce(STEP, pending=True)
    verdict = verdict_of(logs, tmp_path)

    assert (verdict.name, verdict.culprits, verdict.cause) == ("p2p-unmatched", (2,), "message-left-out")
    assert "rank 2 posted 0 sends to rank 0 in step 2, 1 send in each of the 2 steps before" in verdict.summary


def test_who_asks_for_more_than_before_is_named(tmp_path: Path) -> None:
    logs = collected(2)
    for rank in logs:
        collect(rank, 3)
    wait_for_any(logs[0])
    for rank in logs.but(0):
        rank.all_reduce(STEP, pending=True)
    verdict = verdict_of(logs, tmp_path)

    assert (verdict.name, verdict.culprits, verdict.cause) == ("p2p-unmatched", (0,), "message-too-many")
    assert "4 receives from any rank in step 2, 3 receives in each of the 2 steps before" in verdict.summary


def test_without_steps_it_is_told_who_sent_how_many_and_nobody_is_blamed(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for rank in logs.but(0):
        for _ in range(rank.rank):
            rank.send(0, REPORT)
    collect(logs[0], 3)
    wait_for_any(logs[0])
    logs[1].all_reduce(STEP, pending=True)
    logs[2].recv(0, REPORT, pending=True)
    verdict = verdict_of(logs, tmp_path)

    assert (verdict.name, verdict.culprits, verdict.cause) == ("p2p-unmatched", (), "from-any-rank")
    assert verdict.summary.startswith("rank 0 waits for a message from any rank, and nobody has one left to send")
    assert "rank 1 1, rank 2 2" in verdict.summary


def test_the_only_rank_that_could_still_send_is_the_one_that_is_missing(tmp_path: Path) -> None:
    logs = collected(2)
    wait_for_any(logs[0])
    logs[1].recv(0, REPORT, pending=True)
    logs[3].recv(0, REPORT, pending=True)
    logs[2].data_loading("data.py:5 read", seconds=90)
    for rank in logs.but(2):
        rank.pulses(None, seconds=90.0)
    verdict = diagnose(logs.load(tmp_path)).verdict

    assert (verdict.name, verdict.culprits, verdict.cause) == ("rank-missing", (2,), "data-loading")


def test_a_send_that_is_under_way_is_what_a_receive_from_any_rank_would_take(tmp_path: Path) -> None:
    logs = collected(2)
    wait_for_any(logs[0])
    logs[1].send(0, REPORT, pending=True)
    for rank in logs.but(0, 1):
        rank.all_reduce(STEP, pending=True)

    assert verdict_of(logs, tmp_path).name != "p2p-unmatched"
