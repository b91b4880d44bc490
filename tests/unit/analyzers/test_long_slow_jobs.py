"""Slow jobs whose logs are too long for frames, or whose calls are too many."""

import sys
from pathlib import Path

import msgspec
import pytest

from distdiag import events
from distdiag.analyzers import diagnose
from distdiag.analyzers.performance import measure
from distdiag.analyzers.performance.rollups import calls_per_step
from tests.logs import Logs
from tests.slow_jobs import one, shares_of, trained, whole, wrapped


def test_whole_logs_say_the_same_as_frames(tmp_path: Path) -> None:
    run = trained(one(2, "forward", 0.03), facts=lambda rank, step: {"tokens": 100}).load(tmp_path)

    assert whole(run).performance["ranks"] == diagnose(run).performance["ranks"]
    assert whole(run).verdict.summary == diagnose(run).verdict.summary


def test_records_of_steps_know_the_queue_for_processors() -> None:
    line = events.encode(events.Step(step=3, queued_ns=5))

    assert msgspec.json.decode(line) == {"kind": "step", "step": 3, "queued_ns": 5}


def with_sums(logs: Logs) -> Logs:
    """Add to each step the sums over its calls, as recording does."""
    for rank in logs:
        begun = {r.call: (r.start_ns, r.signature) for r in rank.records if isinstance(r, events.Call)}
        signatures = {r.signature: r for r in rank.records if isinstance(r, events.Signature)}
        sums: dict[str, dict[str, int]] = {}
        for record in rank.records:
            if isinstance(record, events.Done):
                start_ns, number = begun[record.call]
                key = f"{signatures[number].group}/{signatures[number].op}"
                sum_ = sums.setdefault(key, {"calls": 0, "bytes": 0, "duration_ns": 0, "wait_ns": 0})
                sum_["calls"] += 1
                sum_["bytes"] += signatures[number].size_bytes
                sum_["duration_ns"] += record.end_ns - start_ns
            elif isinstance(record, events.Step):
                record.rollups, sums = sums, {}
    return logs


def test_sums_of_steps_answer_where_calls_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = with_sums(trained(one(2, "forward", 0.03))).load(tmp_path)
    of_calls = diagnose(run)
    monkeypatch.setattr(sys.modules[measure.__module__], "MANY_CALLS", 1)

    of_sums = whole(run)

    assert (of_sums.verdict.name, of_sums.verdict.culprits) == ("compute-straggler", (2,))
    assert of_sums.performance["ranks"][2]["waits_caused_seconds"] == pytest.approx(
        of_calls.performance["ranks"][2]["waits_caused_seconds"], rel=0.01
    )
    for ours, theirs in zip(shares_of(of_sums), shares_of(of_calls), strict=True):
        assert ours == pytest.approx(theirs, abs=0.005)
    assert of_sums.performance["groups"] == of_calls.performance["groups"]


def test_many_calls_a_step_are_known_from_where_steps_ended(tmp_path: Path) -> None:
    assert calls_per_step(wrapped(50, 1024).load(tmp_path / "many")) == pytest.approx(50, abs=1)
    assert calls_per_step(trained().load(tmp_path / "few")) == pytest.approx(1, abs=0.1)
