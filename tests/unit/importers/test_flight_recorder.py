"""Dumps of the flight recorder as runs: files, schemas, groups, attempts, and logs of our own beside them."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from distdiag.analyzers import diagnose
from distdiag.errors import DistdiagError
from distdiag.findings import as_json
from distdiag.importers import load
from distdiag.importers._ranks import rank_in_name
from distdiag.run import Run
from tests.dumps import START_NS, Dumps
from tests.logs import Logs

HOUR_NS = 3_600_000_000_000


def calls_of(run: Run) -> list[tuple[int, str, int]]:
    return list(zip(run.calls["rank"].tolist(), run.calls["op"].tolist(), run.calls["seq"].tolist(), strict=True))


def reduced(world_size: int = 2, **options: Any) -> Dumps:
    dumps = Dumps(world_size, **options)
    dumps.everywhere("all_reduce")
    return dumps


# ---- files ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_3", 3),
        ("comm_lib_trace_rank_12", 12),
        ("_dump_12", 12),
        ("fr_trace_rank_0.json", 0),
        ("gpu-node-17_rank_3.pkl", 3),
        ("rank_3_gpu-node-17", 3),
        ("node4-7", 7),
        ("trace.rank5.json", 5),
        ("dump", None),
    ],
)
def test_the_rank_is_in_the_name(name: str, rank: int | None) -> None:
    assert rank_in_name(Path(name)) == rank


def test_a_name_with_a_local_rank_yields_to_the_groups(tmp_path: Path) -> None:
    dumps = reduced(4)
    for rank in dumps.ranks:
        dumps.group("9", (rank,), "self")
    for rank in dumps.ranks:
        folder = tmp_path / f"node{rank // 2}"
        folder.mkdir(exist_ok=True)
        (folder / f"nccl_trace_rank_{rank % 2}").write_bytes(pickle.dumps(dumps.content(rank)))

    assert load(tmp_path).ranks == (0, 1, 2, 3)


def test_local_ranks_in_names_accuse_no_rank(tmp_path: Path) -> None:
    dumps = reduced(4)
    for rank in dumps.ranks:
        if rank != 2:
            dumps.add(rank, "all_reduce", state="started", retired=True)
        for entry in dumps.entries[rank]:
            entry["time_created_ns"] += 1000 * rank
        folder = tmp_path / f"node{rank // 2}"
        folder.mkdir(exist_ok=True)
        (folder / f"nccl_trace_rank_{rank % 2}").write_bytes(pickle.dumps(dumps.content(rank)))

    with pytest.raises(DistdiagError, match="both tell the rank 0") as refused:
        load(tmp_path)

    assert "name each file after its rank" in refused.value.hint


def test_names_that_are_hashes_tell_no_ranks(tmp_path: Path) -> None:
    dumps = reduced(4)
    for rank, name in enumerate(("af3a0", "bf3a1eef", "cf3a3dde", "df3a5ccd")):
        (tmp_path / f"{name}.pkl").write_bytes(pickle.dumps(dumps.content(rank)))

    with pytest.raises(DistdiagError, match="neither its name nor its groups tell the rank"):
        load(tmp_path)


def test_one_file_is_enough(tmp_path: Path) -> None:
    directory = reduced().write(tmp_path)

    run = load(directory / "nccl_trace_rank_1")

    assert (run.ranks, run.missing) == ((1,), (0,))


def test_a_pickle_is_preferred_to_the_json_of_the_same_dump(tmp_path: Path) -> None:
    dumps = Dumps(2)
    dumps.everywhere("all_reduce", frames=[{"name": "step", "filename": "/job/train.py", "line": 5}])
    dumps.write(tmp_path, as_json=True)
    dumps.write(tmp_path)

    run = load(tmp_path)

    assert len(run.calls) == 2
    assert run.paths[run.calls["path"].iloc[0]] == ("/job/train.py:5 step",)
    assert not run.quality.doubled_ranks


def test_unknown_files_are_left_out_and_said(tmp_path: Path) -> None:
    directory = reduced().write(tmp_path)
    (directory / "notes").write_text("nothing of interest\n")

    assert any("notes" in note for note in load(directory).quality.notes)


def test_a_damaged_dump_is_said_and_the_others_are_read(tmp_path: Path) -> None:
    directory = reduced(3).write(tmp_path)
    file = directory / "nccl_trace_rank_1"
    file.write_bytes(file.read_bytes()[:200])

    run = load(directory)

    assert (run.ranks, run.missing) == ((0, 2), (1,))
    assert any("nccl_trace_rank_1" in note for note in run.quality.notes)


def test_nothing_but_damaged_dumps_is_an_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps(reduced().content(0))[:200])

    with pytest.raises(DistdiagError, match="nothing could be read") as caught:
        load(tmp_path)

    assert caught.value.hint


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    directory = reduced().write(tmp_path)
    os.mkfifo(directory / "nccl_trace_rank_7.pipe")

    assert load(directory).ranks == (0, 1)


# ---- schemas --------------------------------------------------------------------------------------------------------
def first_schema(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry as the first versions wrote it."""
    kept = ("pg_id", "profiling_name", "time_created_ns", "input_sizes", "output_sizes", "state", "retired", "frames")
    return {name: entry[name] for name in kept} | {"seq_id": entry["collective_seq_id"]}


@pytest.mark.parametrize("version", ["1.0", None])
def test_the_first_schemas_are_read(tmp_path: Path, version: str | None) -> None:
    dumps = reduced()
    dumps.add(0, "all_reduce", state="started")
    for rank in dumps.ranks:
        entries = [first_schema(entry) for entry in dumps.entries[rank]]
        content = entries if version is None else {"version": version, "entries": entries}
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(content))

    verdict = diagnose(load(tmp_path)).verdict

    assert (verdict.name, verdict.culprits, verdict.seq) == ("rank-missing", (1,), 2)


@pytest.mark.parametrize("version", ["2.0", "2.3", "2.7", "2.10", "2.11", "3.1", 2.4])
def test_any_version_is_read(tmp_path: Path, version: Any) -> None:
    assert diagnose(load(reduced(version=version).write(tmp_path))).verdict.name == "healthy"


def test_numbers_written_as_text_are_numbers(tmp_path: Path) -> None:
    dumps = reduced()
    for entry in (dumps.entries[0][0], dumps.entries[1][0]):
        entry |= {"collective_seq_id": "41", "pg_id": "0"}
    dumps.progress = {rank: {"0": {"last_enqueued_collective": "41"}} for rank in dumps.ranks}

    run = load(dumps.write(tmp_path))

    assert calls_of(run) == [(0, "all_reduce", 41), (1, "all_reduce", 41)]
    assert run.statuses["last_enqueued"].tolist() == [41, 41]


def test_json_without_entries_is_a_dump_of_an_idle_rank(tmp_path: Path) -> None:
    dumps = reduced()
    progress = {"0": {"last_enqueued_collective": 1, "last_started_collective": -1, "last_completed_collective": 1}}
    dumps.progress = dict.fromkeys(dumps.ranks, progress)
    directory = dumps.write(tmp_path, as_json=True)
    content = dumps.content(1)
    del content["entries"]
    (directory / "nccl_trace_rank_1.json").write_text(json.dumps(content))

    assert diagnose(load(directory)).verdict.name == "healthy"


def test_an_entry_that_makes_no_sense_loses_no_other(tmp_path: Path) -> None:
    dumps = reduced()
    dumps.everywhere("all_reduce")
    dumps.entries[0].insert(1, {"profiling_name": 7, "collective_seq_id": {}})
    dumps.entries[1].insert(1, {"time_created_ns": -(2**70)})

    run = load(dumps.write(tmp_path))

    assert len(run.calls) == 4
    assert len(run.quality.notes) == 2


# ---- groups ---------------------------------------------------------------------------------------------------------
def test_ranks_of_groups_become_global(tmp_path: Path) -> None:
    dumps = Dumps(6)
    dumps.group("3", (1, 3, 5), "pipeline")
    dumps.add(3, "send 1->2", group=("3", "pipeline"))
    dumps.add(5, "recv 2<-1", group=("3", "pipeline"))

    run = load(dumps.write(tmp_path))

    assert run.calls["peer"].tolist() == [5, 3]


def test_members_that_no_dump_names_are_those_that_used_the_group(tmp_path: Path) -> None:
    dumps = Dumps(4, backend="gloo")
    dumps.configs = {rank: {"": {"name": "", "desc": "", "ranks": "[]"}} for rank in dumps.ranks}
    dumps.everywhere("all_reduce", state="scheduled", retired=True)
    for rank in (0, 2):
        dumps.add(rank, "all_reduce", group=("1", "even"), state="scheduled", retired=True)

    run = load(dumps.write(tmp_path))

    assert sorted(set(run.calls["group_key"])) == ["0[0-3]", "1[0,2]"]
    assert any("even" in note for note in run.quality.notes)


def test_progress_is_told_under_numbers_that_differ_between_ranks(tmp_path: Path) -> None:
    dumps = reduced(4)
    for name, members in (("1", (0, 1)), ("2", (2, 3)), ("3", (1, 3))):
        dumps.group(name, members, f"group {name}")
    dumps.entries = {rank: [] for rank in dumps.ranks}
    numbers = {0: 3, 1: 3, 2: 3, 3: 3}
    for rank in dumps.ranks:
        mine = [name for name in ("0", "1", "2", "3") if name in dumps.configs[rank]]
        dumps.progress[rank] = {
            str(number * 2): {"last_enqueued_collective": numbers[rank] + int(name), "last_completed_collective": 1}
            for number, name in enumerate(mine)
        }

    statuses = load(dumps.write(tmp_path)).statuses

    assert set(zip(statuses["group"], statuses["last_enqueued"], strict=True)) == {
        ("0", 3),
        ("1", 4),
        ("2", 5),
        ("3", 6),
    }


def test_progress_that_counts_messages_as_well_is_not_taken_for_collectives(tmp_path: Path) -> None:
    dumps = reduced()
    for rank, op in ((0, "send 0->1"), (1, "recv 1<-0")):
        dumps.add(rank, op)
        dumps.progress[rank] = {"0": {"last_enqueued_collective": 900 + rank, "last_completed_collective": 900}}

    statuses = load(dumps.write(tmp_path)).statuses

    assert statuses["last_enqueued"].tolist() == [1, 1]


# ---- attempts -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("folders", [("attempt_0", "attempt_1"), ("a", "b")])
def test_the_newest_attempt_is_analysed(tmp_path: Path, folders: tuple[str, str]) -> None:
    for number, folder in enumerate(folders):
        dumps = Dumps(2)
        for rank in dumps.ranks:
            dumps.add(rank, "all_reduce" if number else "broadcast", at_ns=START_NS + number * HOUR_NS)
        dumps.write(tmp_path / folder)

    run = load(tmp_path)

    assert set(run.calls["op"]) == {"all_reduce"}
    assert (run.attempt, run.quality.older_attempts) == (1, (0,))


# ---- logs of our own beside them ------------------------------------------------------------------------------------
def test_dumps_beside_own_logs_add_what_backends_say(tmp_path: Path) -> None:
    logs = Logs(2)
    for rank in logs:
        rank.all_reduce()
        rank.exit()
    logs.write(tmp_path)
    dumps = reduced()
    dumps.progress = {rank: {"0": {"last_enqueued_collective": 1}} for rank in dumps.ranks}
    dumps.write(tmp_path)

    run = load(tmp_path)

    assert len(run.calls) == 2
    assert run.headers["source"].tolist() == ["distdiag", "distdiag"]
    assert run.statuses["last_enqueued"].tolist() == [1, 1]
    assert diagnose(run).verdict.name == "healthy"


def test_a_dump_stands_in_for_a_rank_without_a_log(tmp_path: Path) -> None:
    logs = Logs(2)
    logs[0].all_reduce()
    logs.write(tmp_path, without=[1])
    reduced().write(tmp_path)

    run = load(tmp_path)

    assert run.ranks == (0, 1)
    assert run.headers["source"].tolist() == ["distdiag", "flight-recorder"]
    assert run.missing == ()


def test_the_run_outlives_its_loading(tmp_path: Path) -> None:
    run = load(reduced().write(tmp_path))

    assert run.engine.frame(run.table("call")).shape[0] == 2


# ---- bounds ---------------------------------------------------------------------------------------------------------
def test_sizes_beyond_reason_are_no_sizes(tmp_path: Path) -> None:
    dumps = Dumps(2)
    dumps.everywhere("all_reduce", ((2**40, 2**40),))

    run = load(dumps.write(tmp_path))

    assert run.calls["numel"].tolist() == [0, 0]


def test_one_huge_list_repeated_is_refused(tmp_path: Path) -> None:
    dumps = reduced()
    huge = [[1] * 1_000_000]
    dumps.entries[0] = [dumps.entries[0][0] | {"input_sizes": huge, "record_id": n} for n in range(100)]

    run = load(dumps.write(tmp_path))

    assert run.ranks == (1,)


def test_a_dump_without_rank_is_said(tmp_path: Path) -> None:
    directory = reduced().write(tmp_path)
    (directory / "nccl_trace_rank_1").rename(directory / "dump")

    assert any("rank" in note for note in load(directory).quality.notes)


# ---- held in memory -------------------------------------------------------------------------------------------------
def test_what_is_held_in_memory_is_what_would_be_written(tmp_path: Path) -> None:
    dumps = reduced(3)
    for rank in (0, 2):
        dumps.add(rank, "broadcast", state="scheduled")
    directory = dumps.write(tmp_path)

    held, written = load(directory), load(directory, written=True)

    assert held.calls.astype("object").equals(written.calls.astype("object"))
    assert as_json(diagnose(held)) == as_json(diagnose(written))


def test_a_run_that_is_held_can_be_queried(tmp_path: Path) -> None:
    run = load(reduced(3).write(tmp_path))

    calls = run.engine.frame(run.table("call"))

    assert sorted(calls["rank"]) == [0, 1, 2]


def test_lists_in_lists_in_lists_are_no_sizes_and_no_frames(tmp_path: Path) -> None:
    dumps = reduced()
    nested: list[Any] = [1]
    for _ in range(60):
        nested = [nested, nested]
    bad = {"input_sizes": nested, "output_sizes": [nested], "frames": [{"filename": nested, "name": nested}] * 2}
    for entries in dumps.entries.values():
        entries[0] |= bad

    run = load(dumps.write(tmp_path))

    assert run.calls["numel"].tolist() == [0, 0]
