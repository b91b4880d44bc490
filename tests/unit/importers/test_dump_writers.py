"""Dumps of other writers: fields that are missing or of other types, torchcomms, and names of other forms."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distdiag.analyzers import diagnose
from distdiag.errors import DistdiagError
from distdiag.importers import load
from tests.dumps import Dumps

Change = Callable[[dict[str, Any]], Any]
MISSING = 3


def stuck(**options: Any) -> Dumps:
    """Return dumps of five ranks of which one never came to the last reduction."""
    dumps = Dumps(5, **options)
    for _ in range(8):
        dumps.everywhere("all_reduce", [[96]])
    for rank in dumps.ranks:
        if rank != MISSING:
            dumps.add(rank, "all_reduce", [[96]], state="started")
    return dumps


def written(dumps: Dumps, directory: Path, name: str, change: Change = lambda content: content) -> Path:
    """Write one file for each rank as changed, and return the directory."""
    for rank in dumps.ranks:
        file = directory / name.format(rank)
        file.parent.mkdir(parents=True, exist_ok=True)
        content = json.loads(json.dumps(dumps.content(rank)))
        file.write_text(json.dumps(change(content) or content))
    return directory


def each(**fields: Any) -> Change:
    """Return a change that gives all entries other values, which may be made of those they have."""

    def change(content: dict[str, Any]) -> None:
        for entry in content["entries"]:
            entry |= {name: value(entry) if callable(value) else value for name, value in fields.items()}

    return change


def without_numbers(content: dict[str, Any]) -> None:
    for entry in content["entries"]:
        del entry["collective_seq_id"]


WRITTEN: dict[str, Change] = {
    "null for nothing": each(record_id=None, p2p_seq_id=None, retired=None, is_p2p=None, timeout_ms=None),
    "-1 for nothing": each(p2p_seq_id=-1, timeout_ms=-1, pg_id=-1, time_discovered_started_ns=-1),
    "numbers with a point": each(collective_seq_id=lambda entry: float(entry["collective_seq_id"])),
    "a group by its name": each(process_group=lambda entry: entry["process_group"][0]),
    "a group with a number": each(process_group=lambda entry: [0, "default_pg"]),
    "a group as an object": each(process_group=lambda entry: {"name": "0", "desc": "default_pg"}),
    "NaN": each(duration_ms=float("nan")),
    "entries by number": lambda content: content | {"entries": dict(enumerate(content["entries"]))},
    "no numbers": without_numbers,
    "wrapped": lambda content: {"host": "a", "trace": content},
}


@pytest.mark.parametrize("change", WRITTEN.values(), ids=WRITTEN)
def test_other_ways_to_write_a_field_do_not_hide_who_is_missing(change: Change, tmp_path: Path) -> None:
    verdict = diagnose(load(written(stuck(), tmp_path, "trace_rank_{}.json", change))).verdict

    assert (verdict.name, verdict.culprits, verdict.seq) == ("rank-missing", (MISSING,), 9)


@pytest.mark.parametrize(
    "change", [each(collective_seq_id=-1), each(profiling_name=[]), lambda content: content | {"entries": [7, 8]}]
)
def test_dumps_of_which_no_entry_makes_sense_are_no_healthy_run(change: Change, tmp_path: Path) -> None:
    with pytest.raises(DistdiagError, match="none of its"):
        load(written(stuck(), tmp_path, "trace_rank_{}.json", change))


def test_entries_without_numbers_cannot_be_compared_once_older_ones_are_overwritten(tmp_path: Path) -> None:
    def late(content: dict[str, Any]) -> None:
        without_numbers(content)
        del content["entries"][:3]

    with pytest.raises(DistdiagError, match="not numbered"):
        load(written(stuck(), tmp_path, "trace_rank_{}.json", late))


# ---- names ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "name",
    [
        "{}_trace.json",
        "trace_{}.1790000000.json",
        "trace.{}of5.json",
        "trace_{}_v2.json",
        "rank_{}/trace.json",
        "{}/comm_lib_trace.json",
        "run7/{}/dump_2.json",
        "trace_{}_104502.json",
    ],
)
def test_the_number_in_which_names_differ_is_the_rank(name: str, tmp_path: Path) -> None:
    verdict = diagnose(load(written(stuck(), tmp_path, name))).verdict

    assert (verdict.name, verdict.culprits) == ("rank-missing", (MISSING,))


def test_of_several_numbers_in_which_names_differ_the_last_is_the_rank(tmp_path: Path) -> None:
    dumps = stuck()
    for rank in (1, 4):
        (tmp_path / f"trace_rank_worker-node{rank + 6:02d}_{rank}").write_text(json.dumps(dumps.content(rank)))

    assert load(tmp_path).ranks == (1, 4)


def test_a_time_in_the_name_is_no_rank(tmp_path: Path) -> None:
    dumps = stuck()
    for rank in dumps.ranks:
        (tmp_path / f"trace_{rank}_10450{rank}.json").write_text(json.dumps(dumps.content(rank)))

    assert load(tmp_path).ranks == (0, 1, 2, 3, 4)


def test_the_content_tells_the_rank_where_the_name_does_not(tmp_path: Path) -> None:
    dumps = stuck()
    for rank in dumps.ranks:
        (tmp_path / f"{'abcde'[rank]}.json").write_text(json.dumps(dumps.content(rank) | {"rank": rank}))

    assert diagnose(load(tmp_path)).verdict.culprits == (MISSING,)


def test_a_name_that_no_group_of_the_dump_allows_is_no_rank(tmp_path: Path) -> None:
    dumps = Dumps(4)
    dumps.configs = {rank: {} for rank in dumps.ranks}
    dumps.group("0", (6, 7, 8, 9), "default_pg", on=dumps.ranks)
    dumps.everywhere("all_reduce")

    with pytest.raises(DistdiagError) as raised:
        load(dumps.write(tmp_path))

    assert "rank" in str(raised.value.hint)


# ---- torchcomms -----------------------------------------------------------------------------------------------------
def of_torchcomms(world_size: int, *, brackets: bool) -> Dumps:
    """Return dumps of a world and its two halves, whose operations are counted together from 0."""
    dumps = Dumps(world_size, backend="ncclx", version="2.10")
    half = world_size // 2
    members = {rank: list(range(half)) if rank < half else list(range(half, world_size)) for rank in dumps.ranks}
    for rank in dumps.ranks:
        ranks = {"world": list(dumps.ranks), "half": members[rank]}
        texts = {name: ",".join(map(str, numbers)) for name, numbers in ranks.items()}
        dumps.configs[rank] = {
            name: {"name": name, "desc": "ncclx", "ranks": f"[{text}]" if brackets else text}
            for name, text in texts.items()
        }
    return dumps


def count_together(dumps: Dumps) -> Dumps:
    for entries in dumps.entries.values():
        for number, entry in enumerate(entries):
            entry |= {"collective_seq_id": number, "p2p_seq_id": 0, "is_p2p": False, "timeout_ms": 600_000}
    return dumps


@pytest.mark.parametrize("brackets", [True, False])
def test_operations_that_are_counted_over_all_communicators_are_compared_in_theirs(
    brackets: bool, tmp_path: Path
) -> None:
    dumps = of_torchcomms(4, brackets=brackets)
    for number in range(6):
        for rank in dumps.ranks:
            for _ in range(1 + (rank < 2)):
                dumps.add(rank, "all_gather_single", group=("half", "ncclx"), state="started", retired=True)
            if (number, rank) != (5, 2):
                done = number < 5
                dumps.add(rank, "all_reduce", group=("world", "ncclx"), state="completed", retired=done)

    verdict = diagnose(load(count_together(dumps).write(tmp_path))).verdict

    assert (verdict.name, verdict.culprits, verdict.seq) == ("rank-missing", (2,), 6)


def test_an_operation_that_is_no_longer_watched_has_ended_whatever_its_state(tmp_path: Path) -> None:
    dumps = of_torchcomms(4, brackets=True)
    for _ in range(6):
        dumps.everywhere("all_reduce", group=("world", "ncclx"), state="started", retired=True)

    assert diagnose(load(count_together(dumps).write(tmp_path))).verdict.name == "healthy"


def test_operations_counted_together_cannot_be_compared_once_the_oldest_are_overwritten(tmp_path: Path) -> None:
    dumps = of_torchcomms(4, brackets=False)
    for _ in range(6):
        dumps.everywhere("all_reduce", group=("world", "ncclx"))
        dumps.everywhere("all_reduce", group=("half", "ncclx"))
    count_together(dumps)
    for rank in dumps.ranks:
        del dumps.entries[rank][: 2 + rank]

    with pytest.raises(DistdiagError, match="not numbered by group"):
        load(dumps.write(tmp_path))
