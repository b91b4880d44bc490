"""What a run holds after its logs were read."""

import random
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distdiag import events
from distdiag.run import CALL_COLUMNS, CRASH_COLUMNS, Run, load
from distdiag.run.window import window_of
from tests.logs import MONOTONIC_NS, SECOND_NS, WALL_NS, Logs

FRAMES = (
    "headers",
    "groups",
    "calls",
    "steps",
    "phases",
    "batches",
    "memory",
    "numerics",
    "faults",
    "stacks",
    "pulses",
    "gc",
    "compiles",
    "replays",
    "statuses",
    "decisions",
    "dropped",
    "crashes",
)


def frame_of(run: Run, name: str) -> pd.DataFrame:
    frame = getattr(run, name)
    assert isinstance(frame, pd.DataFrame)
    return frame


def only(frame: pd.DataFrame) -> dict[Any, Any]:
    (row,) = frame.to_dict("records")
    return row


def test_a_call_carries_its_signature_and_its_end(tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    logs[1].at(2).all_reduce(("train.py:9 main", "train.py:5 step"), shape=(3, 5), module="layer", seconds=0.5)

    row = only(load_rank(logs, tmp_path, 1))

    assert (row["op"], row["seq"], row["dtype"], row["numel"], row["shapes"]) == (
        "all_reduce",
        1,
        "float32",
        15,
        ((3, 5),),
    )
    assert (row["module"], row["reduce_op"], row["root"], row["p2p"]) == ("layer", "SUM", None, False)
    assert row["start_ns"] == WALL_NS + 2 * SECOND_NS
    assert row["end_ns"] - row["start_ns"] == SECOND_NS // 2
    assert (row["group_key"], row["members"]) == ("0[0-1]", (0, 1))


def load_rank(logs: Logs, directory: Path, rank: int) -> pd.DataFrame:
    calls = logs.load(directory).calls
    return calls[calls["rank"] == rank]


def test_an_unknown_end_is_absent(tmp_path: Path) -> None:
    logs = Logs(world_size=1)
    logs[0].all_reduce(pending=True)

    row = only(logs.load(tmp_path).calls)

    assert row["end_ns"] is None
    assert (row["failed"], row["clock"], row["error"]) == (False, None, None)


def test_a_failed_end_wins_over_one_that_said_done(tmp_path: Path) -> None:
    logs = Logs(world_size=1)
    call = logs[0].all_reduce(pending=True)
    logs[0].done(call, seconds=1, clock="poll").done(call, seconds=2, error="RuntimeError: timed out")

    row = only(logs.load(tmp_path).calls)

    assert (row["failed"], row["error"], row["clock"]) == (True, "RuntimeError: timed out", "wait")


def test_the_earliest_sight_of_an_end_counts(tmp_path: Path) -> None:
    logs = Logs(world_size=1)
    call = logs[0].at(0).all_reduce(pending=True)
    logs[0].done(call, seconds=1, clock="poll").done(call, seconds=2)

    row = only(logs.load(tmp_path).calls)

    assert (row["end_ns"], row["clock"]) == (WALL_NS + SECOND_NS, "poll")


def test_equal_frames_have_one_path_on_all_ranks(tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    logs[1].all_reduce("a.py:1 f")
    for rank in logs:
        rank.all_reduce("b.py:2 g")

    run = logs.load(tmp_path)

    paths = run.calls.groupby("rank")["path"].last()
    assert paths[0] == paths[1]
    assert run.paths[paths[0]] == ("b.py:2 g",)
    assert run.paths[0] == ()


def test_the_same_name_with_other_members_is_another_group(tmp_path: Path) -> None:
    logs = Logs(world_size=4)
    for rank in logs:
        rank.group("1", (0, 1) if rank.rank < 2 else (2, 3))
        rank.all_reduce(group="1")

    run = logs.load(tmp_path)

    assert run.calls.groupby("rank")["group_key"].last().tolist() == ["1[0-1]", "1[0-1]", "1[2-3]", "1[2-3]"]


def test_members_are_taken_from_another_rank_where_a_record_is_lost(tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    for rank in logs:
        rank.all_reduce()
    logs[1].records = [record for record in logs[1].records if not isinstance(record, events.Group)]

    run = logs.load(tmp_path)

    assert run.calls["group_key"].tolist() == ["0[0-1]", "0[0-1]"]


def test_a_call_whose_signature_is_lost_is_of_unknown_op(tmp_path: Path) -> None:
    logs = Logs(world_size=1)
    logs[0].all_reduce()
    logs[0].records = [record for record in logs[0].records if not isinstance(record, events.Signature)]

    run = logs.load(tmp_path)

    assert only(run.calls)["op"] == "unknown"
    assert run.quality.unresolved_calls == 1


def test_records_of_one_step_are_one_row(tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    for rank in logs:
        rank.end_step(facts={"tokens": 7})
    logs[0].add(events.Step(step=0, facts={"loss": 0.5}))

    steps = logs.load(tmp_path).steps

    assert steps["facts"].tolist() == [{"tokens": 7, "loss": 0.5}, {"tokens": 7}]
    assert steps["end_ns"].notna().all()


def test_frames_have_their_declared_columns_even_when_empty(tmp_path: Path) -> None:
    run = Logs(world_size=1).load(tmp_path)

    assert {name: str(dtype) for name, dtype in run.calls.dtypes.items()} == dict(CALL_COLUMNS)
    assert {name: str(dtype) for name, dtype in run.crashes.dtypes.items()} == dict(CRASH_COLUMNS)
    assert all(frame_of(run, name).columns[0] == "rank" for name in FRAMES)


def test_dtypes_do_not_depend_on_what_was_recorded(tmp_path: Path) -> None:
    logs = Logs(world_size=1)
    logs[0].batch()
    logs[0].all_reduce(root=0, peer=1, tag=3, error="boom", handling="ValueError")
    logs[0].end_step(facts={"loss": "nan"}).pulse("a.py:1 f", activity="checkpoint").exit()

    full, empty = logs.load(tmp_path / "full"), Logs(world_size=1).load(tmp_path / "empty")

    for name in FRAMES:
        mine, theirs = frame_of(full, name).dtypes.astype(str), frame_of(empty, name).dtypes.astype(str)
        assert mine.to_dict() == theirs.to_dict(), name


def test_missing_ranks_are_those_of_the_world_without_a_log(tmp_path: Path) -> None:
    run = Logs(world_size=5).load(tmp_path, without=[1, 4])

    assert (run.ranks, run.world_size, run.missing) == ((0, 2, 3), 5, (1, 4))
    assert run.quality.missing_ranks == (1, 4)


def test_ranks_of_one_host_share_a_clock(tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    logs[1].header.wall_ns += 3_000_000  # the pair was taken around a preemption
    for rank in logs:
        rank.at(1).pulse()

    pulses = logs.load(tmp_path).pulses

    assert pulses["time_ns"].nunique() == 1


def test_clocks_of_different_hosts_are_aligned_by_the_ends_of_collectives(tmp_path: Path) -> None:
    logs = Logs(world_size=4, ranks_per_host=2)
    for rank in logs:
        for step in range(10):
            rank.at(step).all_reduce()
    for rank in logs.only(2, 3):
        rank.header.wall_ns += 3600 * SECOND_NS  # an hour ahead

    run = logs.load(tmp_path)

    assert run.calls.groupby("seq")["end_ns"].nunique().eq(1).all()
    assert run.quality.clock_error_ns == 0


def test_a_host_whose_collectives_are_unknown_is_not_corrected(tmp_path: Path) -> None:
    logs = Logs(world_size=2, ranks_per_host=1)

    run = logs.load(tmp_path)

    assert run.quality.clock_error_ns is None
    assert run.quality.clock_corrections_ns == {}


def test_whole_runs_are_read_as_tables(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for rank in logs:
        for _ in range(rank.rank + 1):
            rank.all_reduce()
    run = logs.load(tmp_path)

    calls = run.table("call")
    counted = run.engine.frame(calls.group_by("rank").agg(calls=calls.count()).order_by("rank"))

    assert counted.to_dict("list") == {"rank": [0, 1, 2], "calls": [1, 2, 3]}


def test_segments_of_a_rank_are_one_log(tmp_path: Path) -> None:
    logs = Logs(world_size=1)
    logs[0].all_reduce()
    middle = len(logs[0].records)
    logs[0].all_reduce()
    lines = [events.encode(record) for record in logs[0].records]
    (tmp_path / "rank00000.jsonl").write_bytes(b"".join(lines[:middle]))
    (tmp_path / "rank00000.0001.jsonl").write_bytes(lines[0] + b"".join(lines[middle:]))

    run = load(tmp_path)

    assert run.calls["seq"].tolist() == [1, 2]
    assert run.quality.files == 2


def test_a_single_file_can_be_read(tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    for rank in logs:
        rank.all_reduce()

    run = load(logs.write(tmp_path) / "rank00001.jsonl")

    assert (run.ranks, run.missing) == ((1,), (0,))


def test_the_space_that_a_living_process_reserved_is_no_record(tmp_path: Path) -> None:
    logs = Logs(world_size=1)
    logs[0].all_reduce()
    file = logs.write(tmp_path) / "rank00000.jsonl"
    file.write_bytes(file.read_bytes() + b"\0" * 3_000_000)

    run = load(tmp_path)

    assert len(run.calls) == 1
    assert run.quality.undecodable_lines == {}
    assert run.quality.bytes < 10_000


def test_a_rank_that_only_a_header_tells_is_known(tmp_path: Path) -> None:
    logs = Logs(world_size=1)
    logs[0].all_reduce()
    (tmp_path / "node0-4711.jsonl").write_bytes(logs[0].written())

    assert load(tmp_path).ranks == (0,)


@pytest.mark.parametrize(
    ("megabytes", "ranks", "window"),
    [(320, 8, None), (640, 8, 16 << 20), (640, 128, 1 << 20), (6400, 128, 1 << 20), (640, 1024, 256 << 10),
     (2000, 16384, 64 << 10)],
)  # fmt: skip
def test_what_is_read_of_long_logs_does_not_grow_with_them(megabytes: int, ranks: int, window: int | None) -> None:
    assert window_of(megabytes << 20, ranks) == window


def test_long_logs_are_read_from_their_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distdiag.run.window.LEAST_BYTES", 8 << 10)
    monkeypatch.setattr("distdiag.run.window.HEAD_BYTES", 1 << 10)
    monkeypatch.setattr("distdiag.run.window.WHOLE_BYTES", 16 << 10)
    logs = Logs(world_size=2)
    for rank in logs:
        for number in range(300):
            rank.all_reduce("late.py:2 f" if number > 50 else "early.py:1 f")  # its signature is not in the window

    run = logs.load(tmp_path)

    assert run.quality.window_bytes == 8 << 10
    assert 10 < len(run.calls) < 400
    assert run.calls.groupby("rank")["call"].diff().dropna().eq(1).all()
    assert run.calls.groupby("rank")["seq"].max().tolist() == [300, 300]
    assert run.quality.unresolved_calls == 0
    assert run.engine.frame(run.table("call").agg(calls=run.table("call").count()))["calls"].tolist() == [600]


def test_what_a_newer_minor_version_adds_is_ignored(tmp_path: Path) -> None:
    logs = Logs(world_size=1)
    logs[0].all_reduce()
    newer = b'{"kind":"thermometer","celsius":81}\n'
    lines = logs[0].written().replace(b'"op":"all_reduce"', b'"op":"all_reduce","colour":"red"').splitlines(True)
    (tmp_path / "rank00000.jsonl").write_bytes(b"".join([*lines, newer]))

    run = load(tmp_path)

    assert only(run.calls)["op"] == "all_reduce"
    assert run.quality.unknown_kinds == {"thermometer": 1}
    assert run.quality.undecodable_lines == {}


def test_text_of_any_language_is_read_back(tmp_path: Path) -> None:
    logs = Logs(world_size=1)
    logs[0].fault("ValueError", r"größer als \x41 \u0000 \n ✓", "daten/straße.py:1 lade")

    fault = only(logs.load(tmp_path).faults)

    assert (fault["message"], fault["frames"]) == (r"größer als \x41 \u0000 \n ✓", ("daten/straße.py:1 lade",))


def test_fields_may_stand_in_any_order(tmp_path: Path) -> None:
    logs = Logs(world_size=1)
    logs[0].all_reduce()
    decoded = [events.encode(record) for record in logs[0].records]
    turned = [reordered(line) for line in decoded]
    (tmp_path / "rank00000.jsonl").write_bytes(b"".join(turned))

    run = load(tmp_path)

    assert (only(run.calls)["op"], only(run.calls)["failed"]) == ("all_reduce", False)
    assert run.quality.undecodable_lines == {}


def reordered(line: bytes) -> bytes:
    import json

    return json.dumps(dict(reversed(json.loads(line).items()))).encode() + b"\n"


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1_000))
def test_the_order_of_records_between_ranks_and_of_files_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    shuffled = random.Random(seed)
    first, second = sample(range(3)), sample(shuffled.sample(range(3), 3))

    one = first.load(tmp_path_factory.mktemp("one"))
    other_directory = tmp_path_factory.mktemp("other")
    for rank in shuffled.sample(range(3), 3):
        (other_directory / f"rank{rank:05d}.jsonl").write_bytes(second[rank].written())
    other = load(other_directory)

    for name in FRAMES:
        pd.testing.assert_frame_equal(frame_of(one, name), frame_of(other, name))
    assert one.paths == other.paths
    assert one.quality == other.quality


def sample(order: Any) -> Logs:
    logs = Logs(world_size=3)
    for rank in order:
        log = logs[rank]
        log.at(0).group("1", (0, 1)) if rank < 2 else log.at(0)
        for number in range(3 + rank):
            log.in_phase(("forward", "backward")[number % 2]).all_reduce(f"f{(number + rank) % 3}.py:1 f")
            log.end_step(facts={"tokens": number})
        log.exit()
    return logs


def test_moments_are_wall_clock_and_durations_are_left_alone(tmp_path: Path) -> None:
    logs = Logs(world_size=1)
    logs[0].add(events.GarbageCollection(time_ns=MONOTONIC_NS + 5, duration_ns=7, generation=2))

    row = only(logs.load(tmp_path).gc)

    assert (row["time_ns"], row["duration_ns"]) == (WALL_NS + 5, 7)
