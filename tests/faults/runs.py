"""Starts fault programs on real ranks, a few at a time, and gives the report on each."""

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from distdiag.analyzers import diagnose
from distdiag.findings import Report
from distdiag.live.alarms import Condition, Kind
from distdiag.live.watch import Watch
from distdiag.run import load
from tests.nursery import Nursery, Order, Rank, shared_nursery
from tests.ranks import free_port, launcher_variables, surroundings

AT_A_TIME = 3
CAP_SECONDS = 45.0
"""Ranks that hang are killed then, as a cluster would; far more than starting them takes on a busy machine."""
SETTLED_SECONDS = 6.0
"""Once most ranks of a program have ended, those that hang are given so long to be seen as hanging."""
SEEN_TWICE_SECONDS = 5.0
"""Longer than any alarm of what is not the same has to be seen before it is raised."""

HEALTHY_TIMEOUT = "30"
"""Seconds. Nobody hangs there, and ranks that import much once they have met (pipelining, its compiler: up to 9 s on a
busy machine) come to their first message seconds after one another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A program, and what has to be said of it."""

    name: str
    worker: Path
    """The script that holds it."""
    ranks: int
    verdicts: tuple[str, ...]
    culprits: tuple[int, ...] | None = None
    """None where it is open whom to name."""
    cause: str | None = None
    at_root: bool = False
    """Whether the site has to be the line that carries the comment ROOT."""
    mentions: str = ""
    """What summary or evidence have to say."""
    family: str = ""
    """What it stands with in a table."""
    stall_after: float = 60.0
    """Seconds without progress that the ranks take for a stall, and write their stacks."""

    @property
    def is_healthy(self) -> bool:
        return self.verdicts == ("healthy",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a program ended, and what was found."""

    codes: tuple[int, ...]
    report: Report
    partings: tuple[Condition, ...]
    """What a watch says of calls and replicas that are not the same on all ranks."""


class Runs:
    """All programs that a test session asks for."""

    def __init__(self, directory: Path, faults: Iterable[Fault], variables: Mapping[str, str] | None = None) -> None:
        self._directory = directory
        self._pool = ThreadPoolExecutor(AT_A_TIME)
        self._codes: Mapping[str, Future[tuple[int, ...]]] = {
            fault.name: self._pool.submit(run_ranks, fault, directory / fault.name, shared_nursery(), variables)
            for fault in faults
        }

    def outcome(self, fault: Fault) -> Outcome:
        """Wait for a program and return its outcome."""
        return outcome_of(self._codes[fault.name].result(), self._directory / fault.name / "logs")

    def close(self) -> None:
        """Start nothing more."""
        self._pool.shutdown(cancel_futures=True)


def outcome_of(codes: tuple[int, ...], logs: Path) -> Outcome:
    """Return what the logs of a program say that ended with these exit codes."""
    return Outcome(codes=codes, report=diagnose(load(logs)), partings=partings_in(logs))


def partings_in(logs: Path) -> tuple[Condition, ...]:
    """Return what a watch that looks at logs as soon as their job has ended says of what should be the same."""
    watch = Watch(logs, explain=False)
    wall_ns = max(file.stat().st_mtime_ns for file in logs.glob("*.jsonl"))
    for seconds in (0.0, SEEN_TWICE_SECONDS):
        watch.look(seconds, wall_ns + round(seconds * 1e9))
    alarms = watch.alarms.active.values()
    return tuple(each.condition for each in alarms if each.kind in (Kind.DIVERGENCE, Kind.REPLICA_DESYNC))


def selected(faults: Iterable[Fault], items: Sequence[pytest.Item]) -> list[Fault]:
    """Return the programs that the selected tests ask for."""
    return [fault for fault in faults if any(item.name.endswith(f"[{fault.name}]") for item in items)]


def run_ranks(
    fault: Fault, directory: Path, nursery: Nursery, variables: Mapping[str, str] | None = None
) -> tuple[int, ...]:
    """Run a program on its ranks until all have ended or hang for good, and return their exit codes."""
    directory.mkdir(parents=True)
    port = free_port()
    started = [
        nursery.start(
            Order(
                script=fault.worker,
                arguments=[fault.name],
                variables={
                    **surroundings(directory),
                    **launcher_variables(rank, fault.ranks, port),
                    "LOCAL_WORLD_SIZE": str(fault.ranks),
                    "DISTDIAG_STALL_AFTER": str(fault.stall_after),
                    **(variables or {}),
                    **({"PG_TIMEOUT": HEALTHY_TIMEOUT} if fault.is_healthy else {}),
                },
                directory=directory,
                stdout=directory / f"{rank}.err",
                stderr=directory / f"{rank}.err",
            )
        )
        for rank in range(fault.ranks)
    ]
    _wait(started)
    for rank in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(rank.pid, signal.SIGKILL)
    return tuple(rank.wait() for rank in started)


def _wait(ranks: Sequence[Rank]) -> None:
    deadline = time.monotonic() + CAP_SECONDS
    settled = None
    while time.monotonic() < deadline:
        hanging = sum(rank.poll() is None for rank in ranks)
        if not hanging or (settled is not None and time.monotonic() - settled > SETTLED_SECONDS):
            return
        if settled is None and 2 * hanging < len(ranks):
            settled = time.monotonic()
        time.sleep(0.05)


def assert_as_expected(fault: Fault, outcome: Outcome) -> None:
    """Check the verdict of a program against what has to be said of it."""
    complaints = complaints_of(fault, outcome)
    assert not complaints, (complaints, outcome.report.verdict)


def complaints_of(fault: Fault, outcome: Outcome) -> list[str]:
    """Return what is wrong with the verdict of a program."""
    verdict = outcome.report.verdict
    if fault.is_healthy:
        ended = set(outcome.codes) == {0}
        return [] if verdict.name == "healthy" and ended else [f"{verdict.name}, exit codes {outcome.codes}"]
    complaints = [] if verdict.name in fault.verdicts else [f"{verdict.name} instead of {' or '.join(fault.verdicts)}"]
    if fault.culprits is not None and verdict.culprits != fault.culprits:
        complaints.append(f"culprits {verdict.culprits} instead of {fault.culprits}")
    if fault.cause is not None and verdict.cause != fault.cause:
        complaints.append(f"cause {verdict.cause} instead of {fault.cause}")
    if fault.at_root and verdict.site != root_of(fault.worker, fault.name):
        complaints.append(f"site {verdict.site} instead of {root_of(fault.worker, fault.name)}")
    if fault.mentions not in " ".join((verdict.summary, verdict.op or "", *verdict.evidence)):
        complaints.append(f"no word of {fault.mentions}")
    return complaints


def root_of(worker: Path, name: str) -> str:
    """Return ``file:line`` of the line of a function that carries the comment ROOT."""
    inside = False
    for number, line in enumerate(worker.read_text().splitlines(), 1):
        if line.startswith("def "):
            inside = line.startswith(f"def {name}(")
        if inside and "# ROOT" in line:
            return f"{worker}:{number}"
    raise LookupError(name)
