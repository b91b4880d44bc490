"""Where the time of steps goes, computed from frames and from whole logs alike."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from distdiag import events
from distdiag.analyzers.performance import waits
from distdiag.analyzers.performance.tables import tables_of
from distdiag.analyzers.summary.performance import performance
from distdiag.run import Run
from tests.logs import Logs

STEP_SECONDS = 0.1
DATA_SECONDS = 0.01
TRANSFER_SECONDS = 0.002


def job(slow: float = 0.0, *, steps: int = 12, clock: str = "wait") -> Logs:
    """Three ranks; the last one computes ``slow`` seconds longer, the others wait for it."""
    logs = Logs(world_size=3)
    for step in range(steps):
        for rank in logs:
            rank.at(step * STEP_SECONDS).sleep(DATA_SECONDS + 0.02 + (slow if rank.rank == 2 else 0.0))
        arrived = max(rank.now_ns for rank in logs)
        for rank in logs:
            waited = (arrived - rank.now_ns) / 1e9 + TRANSFER_SECONDS
            rank.done(rank.all_reduce(pending=True), seconds=waited, clock=clock)
            rank.at(step * STEP_SECONDS).end_step(
                seconds=STEP_SECONDS, data_ns=round(DATA_SECONDS * 1e9), facts={"tokens": 50}
            )
    return logs


def from_logs(run: Run) -> Run:
    """Return the run as if its logs had been too long for its frames."""
    return dataclasses.replace(run, quality=dataclasses.replace(run.quality, window_bytes=1))


def shares(measured: dict[str, Any], rank: int) -> dict[str, float]:
    return {name: measured["ranks"][rank][f"{name}_share"] for name in ("compute", "data", "communication", "wait")}


def test_shares_add_up_and_the_late_rank_does_not_wait(tmp_path: Path) -> None:
    measured = performance(job(slow=0.03).load(tmp_path))

    assert shares(measured, 0) == {"compute": 0.58, "data": 0.1, "communication": 0.02, "wait": 0.3}
    assert shares(measured, 2) == {"compute": 0.88, "data": 0.1, "communication": 0.02, "wait": 0.0}
    assert measured["ranks"][0]["step_seconds"] == pytest.approx(STEP_SECONDS)


def test_the_slowest_rank_is_the_one_with_the_longest_own_time(tmp_path: Path) -> None:
    measured = performance(job(slow=0.03).load(tmp_path))

    assert measured["slowest"] == {"rank": 2, "own_step_seconds": 0.098, "typical_seconds": 0.068}


def test_no_rank_is_called_slow_after_a_few_steps(tmp_path: Path) -> None:
    measured = performance(job(steps=6, slow=0.03).load(tmp_path))

    assert measured["slowest"] is None
    assert "too few" in measured["unknown"]["slowest"]


def test_no_rank_is_called_slow_for_a_small_difference(tmp_path: Path) -> None:
    assert performance(job(slow=0.003).load(tmp_path))["slowest"] is None


def test_first_steps_do_not_count_where_enough_stay(tmp_path: Path) -> None:
    measured = performance(job(steps=12).load(tmp_path / "many"))
    few = performance(job(steps=3).load(tmp_path / "few"))

    assert (measured["ranks"][0]["steps"], few["ranks"][0]["steps"]) == (10, 3)


def test_calls_that_nobody_waits_for_overlap_one_another(tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    for rank in logs:
        for step in range(8):
            rank.at(step + 0.4 * (1 - rank.rank))
            buckets = [rank.all_reduce(pending=True) for _ in range(4)]
            rank.at(step + 0.5)
            for bucket in buckets:
                rank.done(bucket, clock="poll")
            rank.at(step).end_step(seconds=1.0)

    found = shares(performance(logs.load(tmp_path)), 1)

    assert (found["wait"], found["communication"]) == (0.4, 0.1)


@pytest.mark.parametrize("clock", ["wait", "poll"])
def test_whole_logs_give_the_same_as_frames(tmp_path: Path, clock: str) -> None:
    logs = job(slow=0.03, clock=clock)
    for rank in logs.only(0, 1):
        rank.group("1", (0, 1))
        rank.all_reduce(group="1")
        rank.send(1 - rank.rank, group="1")
    run = logs.load(tmp_path)

    assert performance(from_logs(run), whole=True) == performance(run)


def test_times_and_ranks_that_one_integer_cannot_hold_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = job(slow=0.03)
    expected = performance(logs.load(tmp_path / "short"))
    monkeypatch.setattr(waits, "LARGEST", 0)

    assert performance(logs.load(tmp_path / "long")) == expected


def test_a_failed_call_and_one_whose_end_was_told_twice_are_read_from_whole_logs(tmp_path: Path) -> None:
    logs = job(slow=0.03, clock="poll")
    for rank in logs:
        again = next(record for record in rank.records if isinstance(record, events.Done) and record.call == 8)
        rank.add(events.Done(call=8, end_ns=again.end_ns + 1_000_000, clock="wait"))
        rank.add(events.Done(call=9, end_ns=again.end_ns, clock="wait", failed=True, error="gone"))
    run = logs.load(tmp_path)

    found = tables_of(from_logs(run), whole=True)

    rows = run.engine.frame(found.calls.filter(found.calls["rank"] == 0)).to_dict("records")
    calls = {row["call"]: row for row in rows}
    assert sorted(set(range(1, 13)) - set(calls)) == [9]
    assert [calls[number]["waited"] for number in (7, 8)] == [False, True]
    assert calls[8]["end_ns"] - calls[7]["end_ns"] == pytest.approx(STEP_SECONDS * 1e9)


@pytest.mark.parametrize(("late", "causes"), [(0.001, (2, 0, 0)), (0.0001, (1, 1, 0))])
def test_waits_within_the_noise_stay_with_who_came_last(
    tmp_path: Path, late: float, causes: tuple[int, int, int]
) -> None:
    logs = Logs(world_size=3)
    for rank in logs:
        for name, members in (("front", (0, 1)), ("back", (1, 2))):
            if rank.rank in members:
                rank.group(name, members)
    for step in range(12):
        begin = STEP_SECONDS * step
        logs[0].at(begin + 0.01 + late).all_reduce(group="front", seconds=0.001)
        logs[1].at(begin + 0.01).all_reduce(group="front", seconds=0.001 + late)
        logs[1].at(begin + 0.011 + late).all_reduce(group="back", seconds=0.001)  # late because of rank 0
        logs[2].at(begin + 0.011).all_reduce(group="back", seconds=0.001 + late)
        for rank in logs:
            rank.at(begin).end_step(seconds=STEP_SECONDS)

    ranks = performance(logs.load(tmp_path))["ranks"]

    expected = [10 * late * share for share in causes]
    assert [rank["waits_caused_seconds"] for rank in ranks] == pytest.approx(expected, abs=1e-6)


def test_steps_whose_calls_are_lost_do_not_count(tmp_path: Path) -> None:
    logs = job(slow=0.03)
    for rank in logs:
        rank.records = [record for record in rank.records if getattr(record, "call", 99) > 6]

    run = logs.load(tmp_path)

    assert performance(run)["ranks"][0]["wait_share"] == pytest.approx(0.3)
    assert performance(from_logs(run), whole=True) == performance(run)


def test_of_long_logs_only_the_newest_steps_count_unless_asked(tmp_path: Path) -> None:
    run = from_logs(job().load(tmp_path))

    assert performance(run)["covers"] == "newest steps"
    assert performance(run, whole=True)["covers"] == "all steps"


def test_tokens_are_counted_where_they_were_said(tmp_path: Path) -> None:
    measured = performance(job().load(tmp_path))

    assert measured["ranks"][0]["tokens_per_second"] == pytest.approx(500.0)
    assert "tokens" not in measured["unknown"]


def test_what_was_not_recorded_is_told(tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    for rank in logs:
        rank.all_reduce()

    measured = performance(logs.load(tmp_path))

    assert measured["ranks"] == []
    assert set(measured["unknown"]) == {"steps", "tokens"}


def test_no_share_is_told_of_a_device_that_the_host_runs_ahead_of(tmp_path: Path) -> None:
    logs = job(slow=0.03)
    for rank in logs:
        for record in rank.records:
            if isinstance(record, events.Signature):
                record.device = "cuda"

    measured = performance(logs.load(tmp_path))

    assert "shares" in measured["unknown"]
    assert (measured["slowest"], measured["ranks"][0]["compute_share"]) == (None, None)
    assert measured["ranks"][0]["step_seconds"] == pytest.approx(STEP_SECONDS)
