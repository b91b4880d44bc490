"""An analyzer that fails costs what it would have found, and nothing else."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from distdiag import analyzers
from distdiag.analyzers import diagnose
from distdiag.errors import RAISE_OWN_ERRORS
from distdiag.findings import Finding
from distdiag.run import Run
from tests.logs import Logs


class Failing(ModuleType):
    CODE = "DD999"
    NAME = "never-found"

    def analyze(self, run: Run) -> Iterator[Finding]:
        raise KeyError("gone")


@pytest.fixture(autouse=True)
def _one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analyzers, "ANALYZERS", (Failing("failing"), *analyzers.ANALYZERS))
    monkeypatch.delenv(RAISE_OWN_ERRORS, raising=False)


def stuck() -> Logs:
    logs = Logs(world_size=3)
    for rank in logs:
        rank.all_reduce("train.py:10 step")
    for rank in logs.but(2):
        rank.all_reduce("train.py:10 step", pending=True)
        rank.pulses("train.py:10 step", seconds=30, waiting=[2])
    logs[2].data_loading("data.py:5 load")
    return logs


def test_the_verdict_of_the_others_stands(tmp_path: Path) -> None:
    report = diagnose(stuck().load(tmp_path))

    assert (report.verdict.name, report.verdict.culprits) == ("rank-missing", (2,))
    (failure,) = [finding for finding in report.findings if finding.code == "DD105"]
    assert "failed while it looked for never-found" in failure.summary
    assert failure.evidence[0].startswith("KeyError at test_failing_analyzers.py:")


def test_nothing_is_called_healthy_that_could_not_be_looked_at(tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    for rank in logs:
        rank.all_reduce("train.py:10 step")
        rank.exit()

    assert diagnose(logs.load(tmp_path)).verdict.name == "insufficient-evidence"


def test_the_error_is_raised_where_that_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RAISE_OWN_ERRORS, "1")

    with pytest.raises(KeyError, match="gone"):
        diagnose(stuck().load(tmp_path))
