"""Spark gives the reports that DuckDB gives, of logs here, elsewhere and packed; skipped where it is not installed."""

import dataclasses
import gc
import io
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

from distdiag import importers, remote
from distdiag.analyzers import diagnose
from distdiag.commands import analyze
from distdiag.engine.spark import SparkEngine, session_of
from distdiag.errors import DistdiagError
from distdiag.reporters import json as json_reporter
from distdiag.run import Run, window
from tests.benchmarks.performance_scale import Job, write
from tests.logs import Logs

pytest.importorskip("pyspark")
pytestmark = [
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark", "ignore::ResourceWarning"),
]
SMALL = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
SAMPLES = Path(__file__).parents[2] / "sample_logs"


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    found = session_of("local[2]")
    # Of such small queries most of the time goes into planning and compiling them.
    for name, value in SMALL.items():
        found.conf.set(name, value)
    yield found
    found.stop()


@pytest.fixture
def long_runs_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of this size are read as those are of which only the newest part is looked at."""
    for module in (window, remote):
        monkeypatch.setattr(module, "WHOLE_BYTES", 1)
        monkeypatch.setattr(module, "LEAST_BYTES", 200_000)
        monkeypatch.setattr(module, "HEAD_BYTES", 4096)


def report(run: Run) -> str:
    out = io.StringIO()
    json_reporter.render(diagnose(run), out)
    return out.getvalue()


def on_spark(run: Run, session: Any) -> Run:
    return dataclasses.replace(run, engine=SparkEngine(session, run.engine))


def many_calls(directory: Path) -> Path:
    """A run with so many calls a step that the sums of its steps answer; rank 1 is slow."""
    logs = Logs(world_size=2)
    sums = {"calls": 120, "bytes": 120 * 16, "duration_ns": 60_000_000}
    for step in range(40):
        for rank in logs:
            rank.at(1.0 + step * 0.1)
            for _ in range(120):
                rank.all_reduce("train.py:10 step", seconds=0.0005)
            waited = 30_000_000 if rank.rank == 0 else 1_000_000
            rank.at(1.1 + step * 0.1).end_step(
                seconds=0.1, forward_ns=40_000_000, backward_ns=30_000_000,
                rollups={"0/all_reduce": {**sums, "wait_ns": waited}, "0/barrier": {**sums, "calls": 1}},
            )  # fmt: skip
    return logs.write(directory)


@pytest.mark.parametrize("sample", ["data-loader-stuck", "healthy"])
def test_a_hang_and_a_healthy_run_are_told_alike(sample: str, session: Any) -> None:
    expected = report(importers.load(SAMPLES / sample))

    assert report(on_spark(importers.load(SAMPLES / sample), session)) == expected


@pytest.mark.usefixtures("long_runs_are_short")
def test_a_slow_run_is_told_alike_from_whole_logs_packed_or_not_here_or_elsewhere(tmp_path: Path, session: Any) -> None:
    logs = tmp_path / "logs"
    write(Job(ranks=8, steps=150), logs)
    importers.pack(logs, tmp_path / "packed")
    run = importers.load(logs)
    assert run.quality.window_bytes is not None
    expected = report(run)
    assert '"culprits": [\n      3' in expected  # the rank that is slow

    assert report(on_spark(importers.load(logs), session)) == expected
    assert report(on_spark(importers.load(tmp_path / "packed"), session)) == expected
    assert report(remote.load(logs.as_uri(), session)) == expected


@pytest.mark.usefixtures("long_runs_are_short")
def test_sums_of_steps_are_told_alike(tmp_path: Path, session: Any) -> None:
    logs = many_calls(tmp_path / "logs")
    expected = report(importers.load(logs))

    assert report(on_spark(importers.load(logs), session)) == expected


@pytest.mark.usefixtures("long_runs_are_short")
def test_rows_that_executors_keep_for_themselves_tell_the_same(tmp_path: Path, session: Any) -> None:
    logs = many_calls(tmp_path / "logs")
    expected = report(importers.load(logs))
    run = on_spark(importers.load(logs), session)
    assert isinstance(run.engine, SparkEngine)
    run.engine.shares_disk = False  # as on a cluster

    assert report(run) == expected


def test_lines_are_the_records_that_they_are_for_the_embedded_engine(tmp_path: Path, session: Any) -> None:
    logs = many_calls(tmp_path / "logs")
    with (logs / "rank00000.jsonl").open("ab") as file:
        file.write(b'{"duration_ns":7,"kind":"gc","step":3,"start_ns":5,"generation":2}\n')  # in another order
        file.write(b'{"end_ns":900,"clock":"poll","kind":"done","call":77777}\n')
        file.write(b'{"kind":"step","step":12345,"sta\n{"kind":"gc","step"\nno JSON\n\n' + b"\0" * 4096)
    embedded = importers.load(logs)

    run = on_spark(embedded, session)

    for kinds in (("step",), ("gc",), ("signature",), ("call", "done"), ("done",), ("phase",)):
        expected = embedded.engine.frame(embedded.table(*kinds))
        assert not expected.empty or kinds == ("phase",)
        assert rows(run.engine.frame(run.table(*kinds))) == rows(expected), kinds


def test_files_of_one_name_in_several_folders_are_told_apart(tmp_path: Path, session: Any) -> None:
    logs = many_calls(tmp_path / "logs")
    for name in ("rank00000.jsonl", "rank00001.jsonl"):
        (tmp_path / "all" / f"{name} on 100%+#é").mkdir(parents=True)
        (logs / name).rename(tmp_path / "all" / f"{name} on 100%+#é" / "log.jsonl")
    embedded = importers.load(tmp_path / "all", written=True)

    run = on_spark(embedded, session)

    expected = embedded.engine.frame(embedded.table("step", only=("step", "start_ns")))
    assert set(expected["rank"]) == {0, 1}
    assert rows(run.engine.frame(run.table("step", only=("step", "start_ns")))) == rows(expected)


def test_the_text_is_read_once_for_all_kinds_but_the_bulk_and_copies_go_with_the_engine(
    tmp_path: Path, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "copies").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "copies"))
    run = on_spark(importers.load(many_calls(tmp_path / "logs")), session)
    steps = len(run.engine.frame(run.table("step")))

    shutil.rmtree(tmp_path / "logs")
    signatures = len(run.engine.frame(run.table("signature")))

    assert (steps, signatures) == (80, 2)
    assert any((tmp_path / "copies").rglob("*.parquet"))
    del run
    gc.collect()
    assert not any((tmp_path / "copies").iterdir())


def rows(frame: pd.DataFrame) -> list[str]:
    columns = sorted(frame.columns)
    return sorted(str([None if pd.isna(value) else value for value in row]) for row in frame[columns].to_numpy())


def test_the_command_reads_a_folder_elsewhere(tmp_path: Path, session: Any) -> None:
    shutil.copytree(SAMPLES / "data-loader-stuck", tmp_path / "logs")
    arguments = [f"file://{tmp_path}/logs", "--format", "json", "--engine", session.sparkContext.master]

    result = CliRunner().invoke(analyze.command, arguments, standalone_mode=False)

    assert result.return_value == 1
    assert result.output == report(importers.load(SAMPLES / "data-loader-stuck"))


def test_what_cannot_be_read_elsewhere_is_said_in_a_line(tmp_path: Path, session: Any) -> None:
    with pytest.raises(DistdiagError, match="cannot be read"):
        remote.load(f"file://{tmp_path}/nowhere", session)
