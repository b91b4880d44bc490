"""Ranks that join a job in ways in which they cannot meet, as a watch tells it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from distdiag.live.alarms import Alarm, Kind
from tests.watching import Watched, raised

JOIN = "train.py:7 main"
USUAL: dict[str, Any] = {"address": "10.0.0.1", "port": 29500, "world_size": 4}


def joining(tmp_path: Path, odd: Mapping[int, Mapping[str, Any]], *, world_size: int = 4) -> Watched:
    """All ranks wait to join, some of them in another way."""
    watched = Watched(tmp_path, world_size)
    for log in watched.logs:
        log.begin_phase("init_process_group", JOIN, **{**USUAL, "as_rank": log.rank, **odd.get(log.rank, {})})
    return watched


def alarms_after(watched: Watched, seconds: float) -> list[Alarm]:
    watched.beat(seconds, site=JOIN)
    return raised([*watched.look(), *watched.look(watched.seconds + 1.0)])


@pytest.mark.parametrize(
    ("odd", "said", "ranks"),
    [
        ({3: {"port": 29501}}, "ranks 0-2 joined at port 29500, rank 3 joined at port 29501", (3,)),
        ({2: {"world_size": 3}}, "ranks 0-1,3 joined a world of 4, rank 2 joined a world of 3", (2,)),
        ({2: {"as_rank": 1}}, "ranks 1-2 joined as rank 1", ()),
        (
            {n: {"address": f"/tmp/{n // 2}", "port": None} for n in range(4)},
            "ranks 0-1 joined at /tmp/0, ranks 2-3 joined at /tmp/1",
            (),
        ),
    ],
)
def test_ranks_that_cannot_meet_are_told_long_before_a_stall_would_be(
    tmp_path: Path, odd: Mapping[int, Mapping[str, Any]], said: str, ranks: tuple[int, ...]
) -> None:
    (alarm,) = alarms_after(joining(tmp_path, odd), 4.0)

    assert (alarm.kind, alarm.condition.ranks) == (Kind.STALL, ranks)
    assert alarm.condition.summary.startswith(f"the ranks do not meet: {said}; they wait for 4")


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {1: {"address": "node0"}, 2: {"address": "localhost"}},
        {0: {"as_rank": 3}, 3: {"as_rank": 0}},
        {0: {"world_size": None}},
    ],
)
def test_other_names_of_a_host_and_other_numbers_are_no_reason(
    tmp_path: Path, odd: Mapping[int, Mapping[str, Any]]
) -> None:
    assert alarms_after(joining(tmp_path, odd), 4.0) == []


def test_who_has_just_come_may_still_meet_the_others(tmp_path: Path) -> None:
    assert alarms_after(joining(tmp_path, {3: {"port": 29501}}), 2.0) == []


def test_who_came_through_waits_no_more(tmp_path: Path) -> None:
    watched = joining(tmp_path, {3: {"port": 29501}})
    watched.logs[0].end_phase("init_process_group", 1)

    assert alarms_after(watched, 4.0) == []


def test_where_ranks_are_still_to_start_they_are_given_time(tmp_path: Path) -> None:
    watched = joining(tmp_path, {2: {"port": 29501}})
    del watched.logs.ranks[3]

    assert alarms_after(watched, 20.0) == []
    (alarm,) = alarms_after(watched, 45.0)
    assert "ranks 0-1 joined at port 29500, rank 2 joined at port 29501" in alarm.condition.summary
