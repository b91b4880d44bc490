"""Tables of measured operations: what is recognised, what is refused with a reason, what is left out with a note."""

import random
from pathlib import Path

import duckdb
import pandas as pd
import pytest

from distdiag.analyzers import diagnose
from distdiag.errors import DistdiagError
from distdiag.importers import load
from distdiag.run import OPERATION_COLUMNS
from tests.logs import Logs
from tests.op_tables import Shape, operations, write

SHAPE = Shape(steps=3, stages=2, microbatches=3)
META = {"trial_name": "T", "dp_size": 2, "pp_size": 2, "world_size": 32}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return operations(shape=SHAPE)


def refused(path: Path) -> DistdiagError:
    with pytest.raises(DistdiagError) as caught:
        load(path)
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("name", ["trace-T.parquet", "trace-T.csv"])
def test_parquet_and_csv_give_the_same_operations(name: str, table: pd.DataFrame, tmp_path: Path) -> None:
    run = load(write(table, tmp_path / name, META))

    assert list(run.operations.columns) == list(OPERATION_COLUMNS)
    assert len(run.operations) == len(table)
    assert run.operations["duration_ns"].sum() == pytest.approx(table["duration"].sum() * 1e9, abs=len(table))
    assert run.world_size == 32
    assert run.only_measured
    assert run.quality.measured_rows == {"operations": len(table)}


def test_ends_instead_of_durations_and_other_names_of_columns_are_the_same(table: pd.DataFrame, tmp_path: Path) -> None:
    renamed = table.rename(columns={"dp_rank": "dp", "optype": "op", "start_ts": "start"})
    renamed = renamed.assign(end=renamed["start"] + renamed["duration"]).drop(
        columns=["duration", "mc", "gmc", "seq_id"]
    )

    usual, other = load(write(table, tmp_path / "a.parquet")), load(write(renamed, tmp_path / "b.csv"))

    columns = ["rank", "dp", "stage", "step", "seq", "start_ns"]
    pd.testing.assert_frame_equal(usual.operations[columns], other.operations[columns])
    assert (usual.operations["duration_ns"] - other.operations["duration_ns"]).abs().max() <= 1


def test_moments_of_a_clock_count_from_the_first_operation_of_the_step(table: pd.DataFrame, tmp_path: Path) -> None:
    later = table.assign(start_ts=table["start_ts"] + 1_000.0 * table["step"] + 5.0)

    run = load(write(later, tmp_path / "trace.parquet"))

    assert run.operations.groupby("step")["start_ns"].min().tolist() == [0, 0, 0]


def test_missing_columns_are_named(table: pd.DataFrame, tmp_path: Path) -> None:
    error = refused(write(table.drop(columns=["optype", "duration"]), tmp_path / "trace.parquet"))

    assert "lacks the columns optype, duration (or end)" in error.message


def test_a_table_of_something_else_is_not_taken_for_one(tmp_path: Path) -> None:
    path = write(pd.DataFrame({"step": [1], "loss": [0.5]}), tmp_path / "metrics.parquet")

    assert "nothing in" in refused(path).message


def test_a_file_that_was_cut_off_is_refused(table: pd.DataFrame, tmp_path: Path) -> None:
    path = write(table, tmp_path / "trace.parquet")
    path.write_bytes(path.read_bytes()[:2000])

    error = refused(path)

    assert "cannot be read" in error.message
    assert "\n" not in error.message


def test_operations_that_stand_twice_are_refused(table: pd.DataFrame, tmp_path: Path) -> None:
    error = refused(write(pd.concat([table, table[:2]]), tmp_path / "trace.parquet"))

    assert "2 operations stand twice" in error.message


@pytest.mark.parametrize(("column", "value"), [("duration", None), ("start_ts", float("nan")), ("stage", None)])
def test_absent_values_are_refused(column: str, value: float | None, table: pd.DataFrame, tmp_path: Path) -> None:
    spoilt = table.astype({column: "Int64" if column == "stage" else "float64"})
    spoilt.loc[5, column] = value

    error = refused(write(spoilt, tmp_path / "trace.parquet"))

    assert f"1 rows of {tmp_path / 'trace.parquet'} have no {column}" in error.message


def test_operations_that_end_before_they_start_are_refused(table: pd.DataFrame, tmp_path: Path) -> None:
    error = refused(write(table.assign(duration=-table["duration"]), tmp_path / "trace.parquet"))

    assert "end before they start" in error.message


def test_nanoseconds_are_not_taken_for_seconds(table: pd.DataFrame, tmp_path: Path) -> None:
    nanoseconds = table.assign(start_ts=table["start_ts"] * 1e9, duration=table["duration"] * 1e9)

    error = refused(write(nanoseconds, tmp_path / "trace.parquet"))

    assert "take longer than a month" in error.message
    assert error.hint == "times are seconds"


def test_steps_with_gaps_are_left_out_and_a_note_says_what_is_missing(table: pd.DataFrame, tmp_path: Path) -> None:
    gap = (table["step"] == 1) & (table["optype"] == "forward-compute") & (table["seq_id"] == 2) & (table["stage"] == 1)
    run = load(write(table[~gap | (table["dp_rank"] == 0)], tmp_path / "trace.parquet"))

    assert sorted(run.operations["step"].unique()) == [0, 2]
    assert run.quality.notes == (
        "trace.parquet: 1 step was left out: forward-compute 2 of stage 1 is there for 1 of 2 data-parallel ranks "
        "in step 1",
    )


def test_a_table_without_a_whole_step_is_refused(table: pd.DataFrame, tmp_path: Path) -> None:
    gap = (table["optype"] == "optimizer") & (table["dp_rank"] == 1) & (table["stage"] == 0)

    error = refused(write(table[~gap], tmp_path / "trace.parquet"))

    assert "optimizer 0 of stage 0 is there for 1 of 2 data-parallel ranks in step 0" in error.message


def test_a_directory_of_several_tables_is_bad_usage(table: pd.DataFrame, tmp_path: Path) -> None:
    write(table, tmp_path / "trace-A.parquet", META)
    write(table, tmp_path / "trace-B.parquet", META)

    error = refused(tmp_path)

    assert "2 tables of operations, each of a job of its own: trace-A.parquet, trace-B.parquet" in error.message
    assert error.hint == f"name one: distdiag analyze {tmp_path / 'trace-A.parquet'}"


def test_a_directory_of_one_table_its_facts_and_other_files_is_that_table(table: pd.DataFrame, tmp_path: Path) -> None:
    write(table, tmp_path / "trace-A.parquet", META)
    (tmp_path / "result-A.json").write_text('{"slowdown": 1.0}')

    run = load(tmp_path)

    assert run.world_size == 32
    assert run.quality.notes == ("1 file of no kind that is known: result-A.json",)


def test_facts_that_contradict_the_table_are_told(table: pd.DataFrame, tmp_path: Path) -> None:
    run = load(write(table, tmp_path / "trace-A.parquet", {**META, "dp_size": 8}))

    assert run.quality.notes == ("trace-A.parquet: 2 values of dp, where the file beside it says dp_size 8",)


def test_a_table_beside_own_logs_stands_beside_their_records(table: pd.DataFrame, tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    for rank in logs:
        rank.all_reduce("/job/train.py:88 step")
    logs.write(tmp_path)
    write(table, tmp_path / "trace.parquet")

    run = load(tmp_path)

    assert run.ranks == (0, 1)
    assert len(run.calls) == 2
    assert len(run.operations) == len(table)
    assert not run.only_measured
    assert diagnose(run).performance["what_if"]["slowdown"] == pytest.approx(1.0)


def test_a_table_that_cannot_be_read_beside_own_logs_is_a_note(table: pd.DataFrame, tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    for rank in logs:
        rank.all_reduce("/job/train.py:88 step")
    logs.write(tmp_path)
    write(table.drop(columns="rank"), tmp_path / "trace.parquet")

    run = load(tmp_path)

    assert len(run.calls) == 2
    assert run.operations.empty
    assert run.quality.notes == (f"{tmp_path / 'trace.parquet'} lacks the column rank",)


@pytest.mark.parametrize("damaged", range(24))
def test_damage_anywhere_in_a_file_is_one_line_or_a_report(damaged: int, table: pd.DataFrame, tmp_path: Path) -> None:
    path = write(table, tmp_path / "trace.parquet")
    content = bytearray(path.read_bytes())
    noise = random.Random(damaged)
    for _ in range(8):
        content[noise.randrange(len(content))] = noise.randrange(256)
    path.write_bytes(content)

    try:
        verdict = diagnose(load(path)).verdict.name
    except DistdiagError as error:
        verdict = error.message

    assert verdict
    assert "\n" not in verdict


def test_names_with_marks_of_patterns_are_names(table: pd.DataFrame, tmp_path: Path) -> None:
    (tmp_path / "run[1]").mkdir()
    path = write(table, tmp_path / "trace.parquet").rename(tmp_path / "run[1]" / "it's *.parquet")

    run = load(path)

    assert len(run.operations) == len(table)


def test_numbers_that_are_words_are_refused(table: pd.DataFrame, tmp_path: Path) -> None:
    error = refused(write(table.assign(duration="soon"), tmp_path / "trace.parquet"))

    assert "duration in" in error.message
    assert "is not a number" in error.message


def test_an_empty_table_is_refused(tmp_path: Path) -> None:
    path = write(operations(shape=Shape(steps=1)), tmp_path / "trace.parquet")
    duckdb.connect().execute(f"COPY (SELECT * FROM '{path}' LIMIT 0) TO '{path.with_name('none.parquet')}'")

    assert "holds no operation" in refused(path.with_name("none.parquet")).message
