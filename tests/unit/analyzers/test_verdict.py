"""Which of several findings is the verdict."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from distdiag.analyzers.summary.verdict import by_gravity, verdict_of
from distdiag.findings import Finding, Severity
from tests.logs import Logs


def finding(code: str, name: str, severity: Severity = Severity.ERROR) -> Finding:
    return Finding(code=code, name=name, severity=severity, summary=f"{name} was found")


MEMORY = finding("DD401", "out-of-memory")
DIED = finding("DD302", "rank-died")
NON_FINITE = finding("DD501", "non-finite")
SLOW = finding("DD201", "compute-straggler", Severity.WARNING)
MISSING_LOGS = finding("DD101", "logs-missing", Severity.WARNING)
NEAR_LIMIT = finding("DD404", "near-memory-limit", Severity.WARNING)
NOTE = finding("DD301", "rank-missing", Severity.INFO)
ORDERED = (MEMORY, DIED, NON_FINITE, NEAR_LIMIT, SLOW, MISSING_LOGS, NOTE)


@given(st.permutations(ORDERED))
def test_findings_come_by_gravity_whatever_their_order(findings: list[Finding]) -> None:
    assert by_gravity(findings) == ORDERED


def test_a_note_is_no_verdict(tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    for rank in logs:
        rank.all_reduce()
        rank.exit()

    assert verdict_of(logs.load(tmp_path), [NOTE]).name == "healthy"


def test_the_verdict_says_what_its_finding_says(tmp_path: Path) -> None:
    run = Logs(world_size=2).load(tmp_path)

    verdict = verdict_of(run, by_gravity([SLOW, DIED]))

    assert (verdict.name, verdict.code, verdict.summary) == ("rank-died", "DD302", "rank-died was found")
