"""Checksums of replicas that are compared while a job runs."""

from pathlib import Path
from typing import Any

import pytest

from distdiag import events
from distdiag.analyzers import replica_desync
from distdiag.live.alarms import Alarm, Kind
from distdiag.run import load
from tests.logs import WORLD, RankLog
from tests.watching import Watched, cleared, raised

NAMES = ["embedding.weight", "block.weight", "head.bias"]
EQUAL = (1, 2, 3)
FLIPPED = (1, 7, 3)


def check(log: RankLog, digests: tuple[int, ...], **fields: object) -> None:
    log.add(
        events.Numerics(
            step=log.step,
            time_ns=log.now_ns,
            wrapper=1,
            checksum=hash(digests) & 0xFFFFFFFF,
            digests=b"".join(each.to_bytes(4, "little") for each in digests),
            **fields,  # type: ignore[arg-type] # fields of the struct
        )
    )


def wrapped(tmp_path: Path, *, world_size: int = 3, wrapper: str = "DistributedDataParallel") -> Watched:
    """Replicas that were equal in step 10."""
    watched = Watched(tmp_path, world_size=world_size)
    for log in watched.logs:
        log.add(events.Wrapper(wrapper=1, name=wrapper, group=WORLD, time_ns=log.now_ns, parameters=NAMES))
    watched.train(steps=10)
    for log in watched.logs:
        check(log, EQUAL)
    watched.train(steps=10)
    return watched


def alarm_of(watched: Watched) -> Alarm:
    (alarm,) = raised(watched.look_twice())
    return alarm


def test_replica_that_differs_is_named_with_step_and_parameter(tmp_path: Path) -> None:
    watched = wrapped(tmp_path)
    for log in watched.logs:
        check(log, FLIPPED if log.rank == 1 else EQUAL)

    alarm = alarm_of(watched)

    assert (alarm.kind, alarm.condition.ranks) == (Kind.REPLICA_DESYNC, (1,))
    assert alarm.condition.summary == (
        "the model on rank 1 differs from that on ranks 0,2 since step 20: "
        "1 of 3 parameters, first block.weight; all were equal in step 10"
    )


def test_analyzer_says_the_same_of_the_same_logs(tmp_path: Path) -> None:
    watched = wrapped(tmp_path)
    for log in watched.logs:
        check(log, FLIPPED if log.rank == 1 else EQUAL)
    condition = alarm_of(watched).condition

    (finding,) = replica_desync.analyze(load(tmp_path))

    assert (finding.culprits, finding.step) == (condition.ranks, 20)
    assert "block.weight" in finding.summary
    assert finding.evidence[0] == condition.evidence[0]


def test_two_replicas_that_differ_are_both_told_and_none_is_named(tmp_path: Path) -> None:
    watched = wrapped(tmp_path, world_size=2)
    for log in watched.logs:
        check(log, FLIPPED if log.rank == 1 else EQUAL)

    alarm = alarm_of(watched)

    assert alarm.condition.ranks == ()
    assert alarm.condition.summary.startswith("the models on ranks 0-1, which should be equal, differ since step 20")


def test_rank_is_named_only_against_a_majority_of_all_replicas(tmp_path: Path) -> None:
    watched = wrapped(tmp_path, world_size=4)
    for log in watched.logs.only(0, 1, 2):
        check(log, FLIPPED if log.rank == 1 else EQUAL)

    assert alarm_of(watched).condition.ranks == ()

    check(watched.logs[3], EQUAL)
    (changed,) = watched.look(watched.seconds + 2.0)
    assert (changed.what, changed.alarm.condition.ranks) == ("changed", (1,))


def test_replicas_that_are_equal_again_end_the_alarm(tmp_path: Path) -> None:
    watched = wrapped(tmp_path)
    for log in watched.logs:
        check(log, FLIPPED if log.rank == 1 else EQUAL)
    alarm_of(watched)

    watched.train(steps=60)
    for log in watched.logs:
        check(log, EQUAL)
    changes = [*watched.look(), *watched.look(watched.seconds + 4.0)]

    assert [each.kind for each in cleared(changes)] == [Kind.REPLICA_DESYNC]


@pytest.mark.parametrize("why", ["shards", "not finite", "equal"])
def test_what_need_not_be_equal_is_no_alarm(tmp_path: Path, why: str) -> None:
    watched = wrapped(tmp_path, wrapper="FullyShardedDataParallel" if why == "shards" else "DistributedDataParallel")
    if why == "not finite":
        for log in watched.logs:
            log.add(events.Numerics(step=log.step - 1, time_ns=log.now_ns, nonfinite=["loss"]))
    for log in watched.logs:
        check(log, EQUAL if why == "equal" or log.rank != 1 else FLIPPED)

    assert raised(watched.look_twice()) == []


# ---- averaged by hand -----------------------------------------------------------------------------------------------
def by_hand(tmp_path: Path, *, gradients: tuple[int | None, ...] = (5, 5, 5), names: int = 0) -> Watched:
    """Replicas without a wrapper, of which rank 1's is another; ``names`` ranks call their parameters otherwise."""
    watched = Watched(tmp_path, world_size=3)
    for log in watched.logs:
        own = [f"{name} of {log.rank}" for name in NAMES] if log.rank < names else NAMES
        log.add(events.Wrapper(wrapper=1, name=events.BY_HAND, group=WORLD, time_ns=log.now_ns, parameters=own))
        check(log, EQUAL, gradients=5)
    watched.train(steps=10)
    for log, averaged in zip(watched.logs, gradients, strict=True):
        check(log, FLIPPED if log.rank == 1 else EQUAL, gradients=averaged)
    return watched


def test_replicas_averaged_by_hand_that_differ_are_told(tmp_path: Path) -> None:
    watched = by_hand(tmp_path)

    condition = alarm_of(watched).condition

    (finding,) = replica_desync.analyze(load(tmp_path))
    assert (condition.ranks, finding.culprits, finding.step) == ((1,), (1,), 10)
    assert condition.summary == (
        "the model on rank 1 differs from that on ranks 0,2 since step 10: "
        "1 of 3 parameters, first block.weight; all were equal in step 0"
    )


@pytest.mark.parametrize(
    "unlike", [{"gradients": (5, 6, 5)}, {"gradients": (5, None, 5)}, {"gradients": (None,) * 3}, {"names": 1}]
)
def test_replicas_averaged_by_hand_that_may_be_meant_to_differ_are_no_alarm(
    tmp_path: Path, unlike: dict[str, Any]
) -> None:
    watched = by_hand(tmp_path, **unlike)

    assert raised(watched.look_twice()) == []
    assert list(replica_desync.analyze(load(tmp_path))) == []


def test_replicas_averaged_by_hand_are_compared_only_where_all_were_checked(tmp_path: Path) -> None:
    watched = by_hand(tmp_path)
    watched.logs[2].records.pop()

    assert raised(watched.look_twice()) == []


# ---- steps of its own ----------------------------------------------------------------------------------------------
MODEL_BYTES = 400


def apart(tmp_path: Path, steps: int, *, every: int | None, in_each: int = 0) -> list[Alarm]:
    """Replicas go apart from step 1 on, and are averaged in each ``every``th step."""
    watched = Watched(tmp_path, world_size=3)
    for log in watched.logs:
        log.add(
            events.Wrapper(
                wrapper=1,
                name="DistributedDataParallel",
                group=WORLD,
                time_ns=log.now_ns,
                parameters=NAMES,
                size_bytes=MODEL_BYTES,
            )
        )
    for step in range(steps):
        averaged = every is not None and step % every == every - 1
        for log in watched.logs:
            check(log, FLIPPED if log.rank == 1 and step else EQUAL, unsynchronised="bypassed")
            size = MODEL_BYTES * averaged + in_each
            log.end_step(seconds=0.1)
            ended = log.records[-1]
            assert isinstance(ended, events.Step)
            ended.rollups = {"0/all_reduce": {"calls": 1, "bytes": size, "duration_ns": 1}} if size else {}
            log.pulse("train.py:12 main")
        watched.seconds += 0.1
    return raised(watched.look_twice())


@pytest.mark.parametrize(("steps", "every"), [(24, 8), (80, 20), (60, 6), (20, None)])
def test_ranks_that_make_steps_of_their_own_between_averages_are_no_alarm(
    tmp_path: Path, steps: int, every: int | None
) -> None:
    assert apart(tmp_path, steps, every=every) == []


@pytest.mark.parametrize("in_each", [0, MODEL_BYTES])
def test_gradients_that_nobody_averages_are_an_alarm_in_the_end(tmp_path: Path, in_each: int) -> None:
    """Those of one pass may be averaged in each step, which the last pass then spoils."""
    (alarm,) = apart(tmp_path, 60, every=None, in_each=in_each)

    assert (alarm.kind, alarm.condition.ranks) == (Kind.REPLICA_DESYNC, (1,))
