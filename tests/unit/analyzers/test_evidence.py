"""Findings about the logs themselves."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from distdiag import events
from distdiag.analyzers import diagnose, insufficient_evidence, logs_missing, logs_truncated, records_dropped
from distdiag.findings import Finding, Severity
from distdiag.run import load
from tests.logs import SECOND_NS, Logs


def trained(world_size: int = 3) -> Logs:
    logs = Logs(world_size=world_size)
    for rank in logs:
        rank.all_reduce()
        rank.end_step()
        rank.exit()
    return logs


def only(findings: Iterable[Finding]) -> Finding:
    (finding,) = findings
    return finding


def test_whole_logs_give_no_finding(tmp_path: Path) -> None:
    run = trained().load(tmp_path)

    for analyzer in (logs_missing, logs_truncated, records_dropped, insufficient_evidence):
        assert list(analyzer.analyze(run)) == []


def test_missing_ranks_are_named(tmp_path: Path) -> None:
    logs = trained(world_size=5)
    directory = logs.write(tmp_path, without=[1, 2])
    (directory / "rank00002.jsonl").touch()

    finding = only(logs_missing.analyze(load(directory)))

    assert finding.summary == "ranks 1-2 of a world of 5 have no log here"
    assert finding.severity is Severity.WARNING
    assert finding.evidence == ("logs of 3 ranks were read: ranks 0,3-4", "empty: rank00002.jsonl")


def test_logs_of_another_launch_are_named(tmp_path: Path) -> None:
    Logs(world_size=3, run="yesterday").write(tmp_path)
    today = Logs(world_size=3, run="today", attempt=1)
    for rank in today:
        rank.header.wall_ns += 90_000 * SECOND_NS

    finding = only(logs_missing.analyze(today.load(tmp_path)))

    assert "yesterday" in finding.summary
    assert "today" in finding.evidence[0]


def test_a_log_of_a_newer_schema_is_named(tmp_path: Path) -> None:
    logs = trained()
    logs[2].header.schema = "distdiag.log/2"

    findings = list(logs_missing.analyze(logs.load(tmp_path)))

    assert any("1 file of the newer schema distdiag.log/2" in finding.summary for finding in findings)


def test_damaged_lines_are_counted_by_file(tmp_path: Path) -> None:
    directory = trained().write(tmp_path)
    for name, lines in (("rank00001.jsonl", 2), ("rank00002.jsonl", 1)):
        text = (directory / name).read_bytes()
        (directory / name).write_bytes(b"junk\n" * lines + text)

    finding = only(logs_truncated.analyze(load(directory)))

    assert finding.summary == "3 lines of rank00001.jsonl, rank00002.jsonl are damaged and could not be read"
    assert finding.evidence == ("rank00001.jsonl: 2 damaged lines", "rank00002.jsonl: 1 damaged line")


@pytest.mark.parametrize(("reason", "severity"), [("cap", Severity.INFO), ("no-space", Severity.WARNING)])
def test_dropped_records_are_graver_where_the_disk_was_full(tmp_path: Path, reason: str, severity: Severity) -> None:
    logs = trained()
    for rank in logs.only(0, 1):
        rank.add(events.Dropped(time_ns=rank.now_ns, reason=reason, records=500))

    finding = only(records_dropped.analyze(logs.load(tmp_path)))

    assert finding.severity is severity
    assert finding.summary.startswith("1000 ")
    assert "ranks 0-1" in finding.summary


@pytest.mark.parametrize(("full", "expected"), [(True, "records-dropped"), (False, "rank-died")])
def test_rank_whose_disk_was_full_is_not_said_to_be_dead(tmp_path: Path, full: bool, expected: str) -> None:
    logs = Logs(world_size=3)
    for rank in logs:
        for _ in range(3 if rank.rank == 1 else 30):
            rank.sleep(1.0).all_reduce()
            rank.end_step()
            rank.pulse()
    for rank in logs.but(1):
        rank.exit()
    if full:
        logs[1].sleep(20.0).add(events.Dropped(time_ns=logs[1].now_ns, reason="no-space", records=500))

    report = diagnose(logs.load(tmp_path))

    assert report.verdict.name == expected


def test_a_rank_that_two_processes_claim_is_named(tmp_path: Path) -> None:
    logs, rivals = trained(), trained()
    logs[0].sleep(100).pulse()
    rivals[0].header.pid, rivals[0].header.wall_ns = 77, rivals[0].header.wall_ns + SECOND_NS
    (logs.write(tmp_path) / "rank00000.attempt1.jsonl").write_bytes(rivals[0].written())

    finding = only(insufficient_evidence.analyze(load(tmp_path)))

    assert finding.summary == "rank 0 was claimed by several processes at the same time"
    assert finding.evidence == ("rank 0: processes 77, 1000",)


def test_ranks_that_disagree_on_the_world_are_named(tmp_path: Path) -> None:
    logs = trained()
    logs[1].header.world_size = 2

    finding = only(insufficient_evidence.analyze(logs.load(tmp_path)))

    assert finding.evidence == ("world of 2: rank 1", "world of 3: ranks 0,2")


def test_ranks_of_two_launches_with_one_name_are_told_by_their_time(tmp_path: Path) -> None:
    logs = trained()
    logs[2].header.wall_ns += 7200 * SECOND_NS
    logs[2].header.host = "node9"

    finding = only(insufficient_evidence.analyze(logs.load(tmp_path)))

    assert finding.summary == "the logs of ranks 0-1 end 7200 s before those of rank 2 begin"


def test_hosts_whose_clocks_were_aligned_are_no_two_launches(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for rank in logs:
        for _ in range(10):
            rank.all_reduce()
        rank.exit()
    logs[2].header.wall_ns += 7200 * SECOND_NS
    logs[2].header.host = "node9"

    assert list(insufficient_evidence.analyze(logs.load(tmp_path))) == []


def test_a_log_without_a_header_is_named(tmp_path: Path) -> None:
    logs = trained()
    logs[2].records = logs[2].records[1:]

    finding = only(insufficient_evidence.analyze(logs.load(tmp_path)))

    assert finding.summary == "the log of rank 2 is without a header, so the clock is unknown"


def test_calls_of_unknown_op_are_counted(tmp_path: Path) -> None:
    logs = trained()
    logs[2].records = [record for record in logs[2].records if not isinstance(record, events.Signature)]

    finding = only(insufficient_evidence.analyze(logs.load(tmp_path)))

    assert finding.summary == "the op and group of 1 call of 3 are unknown"


def test_logs_that_say_nothing_are_told(tmp_path: Path) -> None:
    findings = insufficient_evidence.analyze(Logs(world_size=2).load(tmp_path))

    assert "the logs of ranks 0-1 hold no call, step, phase or fault" in [finding.summary for finding in findings]
