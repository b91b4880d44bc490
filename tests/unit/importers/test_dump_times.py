"""Dumps that were not made together: what an earlier job left, and several of one rank."""

from pathlib import Path
from typing import Any

from distdiag.analyzers import diagnose
from distdiag.importers import load
from tests.dumps import Dumps

HOUR_NS = 3_600_000_000_000
WAITING = (0, 1, 3)


def trained(calls: int, *, stuck: bool = True, world_size: int = 4) -> Dumps:
    """Return dumps after some calls; where it is stuck, one rank never came to another."""
    dumps = Dumps(world_size)
    for _ in range(calls):
        dumps.everywhere("all_reduce", [[40]])
    for rank in dumps.ranks:
        if stuck and rank != 2:
            dumps.add(rank, "all_reduce", [[40]], state="started")
    return dumps


def earlier(dumps: Dumps, hours: int) -> Dumps:
    for entries in dumps.entries.values():
        for entry in entries:
            moved: dict[str, Any] = {k: v - hours * HOUR_NS for k, v in entry.items() if k.startswith("time_") and v}
            entry |= moved
    return dumps


def test_what_an_earlier_job_left_is_not_taken_for_the_dump_of_a_rank_that_left_none(tmp_path: Path) -> None:
    earlier(trained(9, stuck=False), 5).write(tmp_path)
    trained(9).write(tmp_path, without=(2,))

    verdict = diagnose(load(tmp_path)).verdict

    assert (verdict.name, verdict.culprits) == ("insufficient-evidence", ())
    assert "rank 2 left no log" in verdict.summary


def test_ranks_that_only_an_earlier_job_had_are_no_part_of_a_smaller_one(tmp_path: Path) -> None:
    earlier(trained(9, world_size=6), 5).write(tmp_path)
    trained(9, world_size=4).write(tmp_path)

    run = load(tmp_path)

    assert run.ranks == (0, 1, 2, 3)
    assert diagnose(run).verdict.culprits == (2,)


def test_a_dump_of_an_older_time_does_not_tell_how_far_its_rank_is_now(tmp_path: Path) -> None:
    trained(5, stuck=False).write(tmp_path / "by-hand")
    trained(40).write(tmp_path / "on-timeout", without=(2,))

    run = load(tmp_path)
    verdict = diagnose(run).verdict

    assert (verdict.name, verdict.culprits) == ("insufficient-evidence", ())
    assert any("dumps of rank 2 are older" in note for note in run.quality.notes)


def test_a_rank_that_wrote_one_dump_more_than_others_is_seen_at_their_time(tmp_path: Path) -> None:
    trained(5, stuck=False).write(tmp_path / "by-hand", without=(1, 2, 3))
    later = trained(40)
    for rank in later.ranks:
        del later.entries[rank][:20]
    later.write(tmp_path / "on-timeout")

    verdict = diagnose(load(tmp_path)).verdict

    assert (verdict.name, verdict.culprits, verdict.victims) == ("rank-missing", (2,), WAITING)


def test_a_rank_that_got_nowhere_between_two_dumps_is_still_where_the_newer_says(tmp_path: Path) -> None:
    for folder, calls in (("first", 10), ("second", 12)):
        dumps = trained(calls, stuck=False)
        dumps.entries[2] = dumps.entries[2][:10]
        dumps.write(tmp_path / folder)

    run = load(tmp_path)

    assert run.ranks == (0, 1, 2, 3)
    assert run.calls.groupby("rank")["seq"].max().tolist() == [12, 12, 10, 12]


def test_a_dump_without_operations_is_there_though_it_tells_nothing(tmp_path: Path) -> None:
    dumps = trained(9)
    for entries in dumps.entries.values():
        entries[:] = [entry for entry in entries if entry["state"] != "completed"]

    verdict = dumps.diagnosed(tmp_path).verdict

    assert (verdict.name, verdict.culprits) == ("insufficient-evidence", ())
    assert "what there is of rank 2 tells no call" in verdict.summary
