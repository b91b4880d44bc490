"""Messages that do not fit the room that their receivers make for them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from distdiag.analyzers import diagnose
from distdiag.findings import Confidence, Verdict
from tests.logs import Logs

SEND, RECEIVE = "stage.py:20 hand_on", "stage.py:10 take"
FITTING = {"shape": (4, 16)}
Halves = tuple[dict[str, Any], dict[str, Any]]


def sent(
    messages: Sequence[Halves],
    tmp_path: Path,
    *,
    joined: bool = True,
    any_source: bool = False,
    lines: Sequence[str] = (),
    threads: Sequence[str] = (),
) -> Verdict:
    """Return the verdict on messages from rank 0 to rank 1, each given as what is sent and what it has room in."""
    logs = Logs(world_size=2)
    for rank in logs:
        if joined:
            number = rank.begin_phase("init_process_group")
            rank.end_phase("init_process_group", number)
        for place, message in enumerate(messages):
            rank.thread = threads[place] if threads else "MainThread"
            if rank.rank == 0:
                rank.send(1, lines[place] if lines else SEND, **message[0])
            else:
                rank.recv(0, RECEIVE, **message[1])
        rank.thread = "MainThread"
        if rank.rank == 1 and any_source:
            rank.call("recv_any_source", RECEIVE, p2p=True)
        rank.exit()
    return diagnose(logs.load(tmp_path)).verdict


FITTED: tuple[Halves, ...] = ((FITTING, FITTING), (FITTING, FITTING))
LARGER: Halves = ({"shape": (8, 16)}, FITTING)
SMALLER: Halves = ({"shape": (2, 16)}, FITTING)
OTHER_TYPE: Halves = ({"shape": (4, 16), "dtype": "int32"}, FITTING)


@pytest.mark.parametrize("before", [0, 2])
def test_a_message_that_is_larger_than_its_room_is_told_and_nobody_accused(tmp_path: Path, before: int) -> None:
    verdict = sent([*FITTED[:before], LARGER], tmp_path)

    assert (verdict.name, verdict.culprits, verdict.confidence) == ("shape-mismatch", (), Confidence.HIGH)
    assert "rank 0 sent 8x16 float32 to rank 1, which made room for 4x16 float32" in verdict.summary
    assert verdict.sites == {0: "stage.py:20", 1: "stage.py:10"}


def test_who_passes_something_else_than_before_is_told(tmp_path: Path) -> None:
    verdict = sent([*FITTED, LARGER], tmp_path)

    assert "2 messages between these lines fitted before; rank 0 passes something else now" in verdict.evidence
    assert verdict.site == "stage.py:20"


def test_a_smaller_message_where_all_fitted_before_may_be_meant_so(tmp_path: Path) -> None:
    verdict = sent([*FITTED, SMALLER], tmp_path)

    assert (verdict.name, verdict.confidence) == ("shape-mismatch", Confidence.MEDIUM)


def test_rooms_that_are_always_larger_are_meant_so(tmp_path: Path) -> None:
    assert sent([SMALLER, (FITTING, FITTING), SMALLER], tmp_path).name == "healthy"


def test_sizes_that_both_sides_know_are_no_mismatch(tmp_path: Path) -> None:
    sizes = [{"shape": (rows, 16)} for rows in (3, 1, 4, 1, 5)]

    assert sent([(size, size) for size in sizes], tmp_path).name == "healthy"


def test_another_type_after_messages_of_one_is_told(tmp_path: Path) -> None:
    verdict = sent([*FITTED, OTHER_TYPE], tmp_path)

    assert (verdict.name, verdict.culprits) == ("dtype-mismatch", ())
    assert "rank 0 sent 4x16 int32 to rank 1, which made room for 4x16 float32" in verdict.summary


@pytest.mark.parametrize("shape", [(4, 16), (8, 16)])
def test_two_types_of_floating_point_are_told_at_once(tmp_path: Path, shape: tuple[int, int]) -> None:
    half = ({"shape": shape, "dtype": "bfloat16"}, FITTING)

    assert sent([half], tmp_path).name == "dtype-mismatch"


@pytest.mark.parametrize("dtype", ["uint8", "int32"])
def test_bytes_and_integers_in_the_place_of_floats_may_be_meant_so(tmp_path: Path, dtype: str) -> None:
    shape = (256,) if dtype == "uint8" else (4, 16)

    assert sent([({"shape": shape, "dtype": dtype}, FITTING)], tmp_path).name == "healthy"


def test_nothing_is_told_where_recording_began_later(tmp_path: Path) -> None:
    assert sent([LARGER], tmp_path, joined=False).name != "shape-mismatch"


def test_nothing_is_told_where_a_rank_takes_messages_from_anybody(tmp_path: Path) -> None:
    assert sent([LARGER], tmp_path, any_source=True).name != "shape-mismatch"


def test_nothing_is_told_of_messages_of_several_threads(tmp_path: Path) -> None:
    assert sent([LARGER, SMALLER], tmp_path, threads=("MainThread", "sender")).name != "shape-mismatch"


def test_another_shape_of_as_many_elements_fits(tmp_path: Path) -> None:
    assert sent([*FITTED, ({"shape": (8, 8)}, FITTING)], tmp_path).name == "healthy"
