"""The columns that records declare, as the engine reads them."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ibis
import pandas as pd
import pytest

from distdiag import events
from distdiag.engine import FILE, MEMORY_BYTES, Engine, _compiled, memory_limit_bytes
from distdiag.errors import DistdiagError


@ibis.udf.scalar.builtin  # type: ignore[untyped-decorator]  # Ibis has no type for it
def current_setting(name: str) -> str:
    """Stand for the database's function."""
    raise NotImplementedError


def written(directory: Path, *records: events.Event, name: str = "log") -> Path:
    path = directory / f"{name}.jsonl"
    path.write_bytes(b"".join(map(events.encode, records)))
    return path


def rows(engine: Engine, files: list[Path], kind: type[events.Event]) -> list[dict[Any, Any]]:
    return engine.arrow(engine.read(files, kind)).to_pylist()  # type: ignore[no-any-return]  # Arrow has no types


@pytest.mark.parametrize("kind", events.EVENTS)
def test_every_kind_has_a_table_with_its_fields(tmp_path: Path, kind: type[events.Event]) -> None:
    engine = Engine()

    table = engine.read([written(tmp_path, events.Pulse(time_ns=1, step=2))], kind)

    assert list(table.columns) == [FILE, *kind.__struct_fields__]
    assert engine.arrow(table).num_rows == (1 if kind is events.Pulse else 0)


def test_what_a_record_left_out_is_its_default_or_null(tmp_path: Path) -> None:
    done = events.Done(call=1, end_ns=2, clock="poll")

    (row,) = rows(Engine(), [written(tmp_path, done)], events.Done)

    assert (row["failed"], row["error"], row["wait_start_ns"]) == (False, None, None)


def test_nested_values_stay_text(tmp_path: Path) -> None:
    step = events.Step(step=1, facts={"loss": 0.5})

    (row,) = rows(Engine(), [written(tmp_path, step)], events.Step)

    assert row["facts"] == '{"loss":0.5}'


def test_rows_name_the_file_they_stand_in(tmp_path: Path) -> None:
    files = [written(tmp_path, events.Pulse(time_ns=number, step=0), name=str(9 - number)) for number in range(9)]

    found = rows(Engine(), files, events.Pulse)

    assert [(row[FILE], row["time_ns"]) for row in found] == [(number, number) for number in range(9)]


def test_several_kinds_are_one_table(tmp_path: Path) -> None:
    call = events.Call(call=3, signature=1, seq=2, step=0, start_ns=5, chain=0)
    log = written(tmp_path, call, events.Done(call=3, end_ns=7, clock="poll"), events.Pulse(time_ns=1, step=2))
    engine = Engine()

    table = engine.read([log], (events.Call, events.Done), ("call", "seq", "end_ns", "backwards"))

    found = engine.frame(table.order_by("seq")).astype("object").where(lambda frame: frame.notna(), None)
    assert found.to_dict("records") == [
        {FILE: 0, "call": 3, "seq": 2, "backwards": 0, "end_ns": None},
        {FILE: 0, "call": 3, "seq": None, "backwards": 0, "end_ns": 7},
    ]


@pytest.mark.parametrize("kind", [events.Call, events.Pulse])
@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line[: len(line) // 2] + b"\n",
        lambda line: line[:-2] + line,
        lambda line: line[:-2] + b"\n",
        lambda line: line.replace(b":", b"\x00", 1),
        lambda line: line.replace(b'"step"', b'"st\xffep"'),
        lambda line: line.replace(b'"step"', b'"st\x01ep"'),
        lambda line: line.replace(b'"kind"', b'"kind'),
        lambda line: b"\x00" * 5000 + line,
        lambda line: b"\n\n \n",
        lambda line: b'"' + line,
        lambda line: b"x" * (3 << 20) + b"\n",
    ],
    ids=["cut", "glued", "open", "zeroed", "no-unicode", "control", "unquoted", "hole", "empty", "quote", "long"],
)
def test_damaged_lines_are_no_rows_and_cost_no_others(
    tmp_path: Path, kind: type[events.Event], damage: Callable[[bytes], bytes]
) -> None:
    samples: dict[Any, bytes] = {
        events.Call: events.encode(events.Call(call=3, signature=1, seq=2, step=7, start_ns=5, chain=0)),
        events.Pulse: events.encode(events.Pulse(time_ns=1, step=7)),
    }
    line = samples[kind]
    log = tmp_path / "log.jsonl"
    log.write_bytes(line * 3 + damage(line) + line * 2 + line[:-1] + b"\r\n" + damage(line) + line[:-1])

    assert [row["step"] for row in rows(Engine(), [log], kind)] == [7] * 7


def test_steps_are_read_again_when_their_lines_were_let_go(tmp_path: Path) -> None:
    files = [written(tmp_path, events.Step(step=4), events.Pulse(time_ns=1, step=4))]
    engine = Engine()

    before = rows(engine, files, events.Step)
    engine.let_go(files)

    assert [row["step"] for row in before] == [4]
    assert rows(engine, files, events.Step) == before
    assert [row["time_ns"] for row in rows(engine, files, events.Pulse)] == [1]


def test_a_file_that_went_away_is_an_error_with_a_hint(tmp_path: Path) -> None:
    engine = Engine()

    with pytest.raises(DistdiagError, match="cannot be read"):
        engine.arrow(engine.read([tmp_path / "gone.jsonl"], events.Call))


def test_a_frame_in_memory_is_a_table() -> None:
    engine = Engine()
    frame = pd.DataFrame({"rank": [0, 0, 1], "ns": pd.array([1, None, 5], dtype="Int64"), "late": [True, False, True]})

    table = engine.memory(frame)
    summed = engine.frame(table.group_by("rank").agg(ns=table.ns.sum()).order_by("rank"))

    assert summed["ns"].tolist() == [1, 5]


def test_materialised_rows_outlive_their_file(tmp_path: Path) -> None:
    engine = Engine()
    file = written(tmp_path, events.Pulse(time_ns=5, step=2))

    table = engine.materialised(engine.read([file], events.Pulse).select("time_ns"))
    file.unlink()

    assert engine.frame(table).to_dict("list") == {"time_ns": [5]}


def test_spooled_files_go_with_the_engine() -> None:
    engine = Engine()
    path = engine.spool("log", b"data")
    assert path.read_bytes() == b"data"

    del engine
    gc.collect()

    assert not path.parent.exists()


def test_slow_queries_draw_nothing_and_leave_nothing_in_the_working_directory(tmp_path: Path) -> None:
    engine = Engine()
    settings = (
        "SELECT 1 AS number FROM duckdb_settings() WHERE (name = 'enable_progress_bar' AND value = 'false') "
        "OR (name = 'temp_directory' AND starts_with(value, '/'))"
    )

    engine.arrow(engine.read([written(tmp_path, events.Pulse(time_ns=1, step=2))], events.Pulse))

    assert len(engine._connection.execute(settings).fetchall()) == 2


@pytest.mark.parametrize(
    ("granted", "limit_bytes"),
    [("18.8 GiB", MEMORY_BYTES), ("1.0 GiB", 1 << 29), ("409.6 MiB", 214_748_364), ("unlimited", MEMORY_BYTES)],
)
def test_a_small_machine_keeps_memory_for_the_rest_of_the_verdict(granted: str, limit_bytes: int) -> None:
    assert memory_limit_bytes(granted) == limit_bytes


def test_the_database_is_held_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distdiag.engine.MEMORY_BYTES", 1 << 28)
    engine = Engine()

    (told,) = engine.arrow(engine.memory(pd.DataFrame({"one": [1]})).select(limit=current_setting("memory_limit")))

    assert told.to_pylist() == ["256.0 MiB"]


def test_equal_expressions_are_compiled_once_for_all_engines(tmp_path: Path) -> None:
    file = written(tmp_path, events.Pulse(time_ns=1, step=2))
    _compiled.cache_clear()

    for engine in (Engine(), Engine()):
        pulses = engine.read([file], events.Pulse)
        engine.arrow(pulses.group_by("step").agg(last_ns=pulses.time_ns.max()))

    assert (_compiled.cache_info().misses, _compiled.cache_info().hits) == (1, 1)
