"""Where logs lie that are not here, and what is said where nothing can read them; no Spark is needed for that."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from distdiag.commands import analyze
from distdiag.errors import DistdiagError
from distdiag.remote import uri_of


@pytest.mark.parametrize(
    ("given", "uri"),
    [
        ("s3://bucket/run/logs/", "s3a://bucket/run/logs"),
        ("hdfs://node:8020/logs", "hdfs://node:8020/logs"),
        ("file:///job/logs", "file:///job/logs"),
        ("/job/logs", None),
        ("logs", None),
        ("c:/logs", None),
    ],
)
def test_a_path_is_told_from_a_place_elsewhere(given: str, uri: str | None) -> None:
    assert uri_of(Path(given)) == uri


def test_a_folder_elsewhere_needs_spark() -> None:
    result = CliRunner().invoke(analyze.command, ["s3://bucket/logs"], standalone_mode=False)

    assert isinstance(result.exception, DistdiagError)
    assert str(result.exception) == "s3a://bucket/logs does not lie on this machine"


def test_missing_spark_is_said_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "py4j.protocol", None)

    result = CliRunner().invoke(analyze.command, ["logs", "--engine", "spark"], standalone_mode=False)

    assert isinstance(result.exception, DistdiagError)
    assert "pip install 'distdiag[spark]'" in result.exception.hint


def test_an_unknown_engine_is_bad_usage() -> None:
    result = CliRunner().invoke(analyze.command, ["logs", "--engine", "polars"])

    assert result.exit_code == 2
    assert "none of duckdb, spark, yarn" in result.output
