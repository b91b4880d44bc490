"""How soon ``distdiag watch`` names who makes a job stall, and whether healthy ones leave it silent.

    python -m tests.benchmarks.watch_alarms [--runs 20] [--minutes 30] [--directory DIR] [PROGRAM …]

Without programs, those beside the project that hang, die or are well, and ``tests/faults/watched.py``. Collectives time
out after ten minutes, the stall limit is five seconds. An alarm counts from the last sign of progress that any rank
left in its log; that a rank is slow, from the first step. Right is an alarm in time that names the ranks, with the
right verdict; logs of what is not right are kept.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distdiag import events
from distdiag.journal import read_lines, segments_of
from tests.benchmarks.repetition import RIGHT, Answer, Repetition, add_options, directory_of
from tests.faults.matrix import SHARED
from tests.faults.runs import Fault
from tests.nursery import Nursery, Order, Rank
from tests.ranks import free_port, launcher_variables, surroundings

OWN = Path(__file__).parents[1] / "faults" / "watched.py"
STALL_SECONDS = 5.0
CAP_SECONDS = 150.0
"""Given to who watches; joining on a busy machine takes the most of it."""
ALLOWED_SECONDS, SLOW_SECONDS = 15.0, 30.0
OFTEN = ("data_loader_stuck", "both_send", "rank_zero_extra")
"""Three kinds of stalls; the others are run twice."""
LATE_BY_ITS_WORD = "late_rank_zero"
"""The user named the phase that it is in, which may take as long as it wants: that is no stall."""
LATE, WRONG, SILENT, FALSE = "late", "wrong", "silent", "false"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What watching a program gave; moments are wall times in seconds."""

    alarms: tuple[Mapping[str, Any], ...]
    """Each as it was first told, then the last one with its verdict."""
    code: int | None
    began: float | None
    """When the first step began."""
    stalled: float
    """When the last progress was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program, and what watching it has to give."""

    fault: Fault
    exit_on: str
    judged: Callable[[Fault, Watched], Answer]
    variables: Mapping[str, str] = field(default_factory=dict)


def main() -> None:
    """Watch the programs, tell each result, and a table at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = {program.fault.name: program for program in _programs()}
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=", ".join(known))
    add_options(parser, runs=20)
    options = parser.parse_args()
    if unknown := set(options.programs) - known.keys():
        parser.error(f"no such program: {', '.join(sorted(unknown))}")
    chosen = options.programs or list(known)
    seldom = {program.name for program in SHARED if program.name not in OFTEN}
    runs = {name: min(options.runs, 2) if name in seldom else options.runs for name in chosen}
    repetition = Repetition(directory_of(options, "alarms"), options.minutes)
    with contextlib.closing(Nursery()) as nursery:
        repetition.go_on(runs, lambda name, place: _judged(known[name], place, nursery), at_a_time=options.at_a_time)
    repetition.tell_table(chosen, (RIGHT, LATE, WRONG, SILENT, FALSE))


def _programs() -> Iterator[Program]:
    for fault in SHARED:
        if fault.is_healthy:
            yield Program(fault=fault, exit_on="", judged=_healthy)
        elif fault.name != LATE_BY_ITS_WORD:
            yield Program(fault=fault, exit_on="stall,death,divergence", judged=_stuck)
    for name, exit_on, judged, seconds in (
        ("slow_rank", "straggler", _slow, 60),
        ("skipped_call", "divergence,stall", _skipped, 60),
        ("healthy_pauses", "", _healthy, 50),
    ):
        fault = Fault(name=name, worker=OWN, ranks=3, verdicts=(), culprits=(1,))
        yield Program(fault=fault, exit_on=exit_on, judged=judged, variables={"SECONDS": str(seconds)})


def _judged(program: Program, place: Path, nursery: Nursery) -> Answer:
    return program.judged(program.fault, watch(program, place, nursery))


# ---- what an alarm is worth -----------------------------------------------------------------------------------------
def _stuck(fault: Fault, watched: Watched) -> Answer:
    if not watched.alarms:
        return Answer(SILENT, f"exit code {watched.code}")
    first, last = watched.alarms[0], watched.alarms[-1]
    verdict = last["verdict"] or {}
    took = first["raised"] - watched.stalled
    culprits = None if fault.culprits is None else list(fault.culprits)
    said = f"{first['kind']} {first['ranks']}, verdict {verdict.get('name')} {verdict.get('culprits')}"
    named = not culprits or not first["ranks"] or first["ranks"] == culprits
    if named and not verdict:
        return Answer(LATE, f"{said} in a minute", took)
    right = verdict.get("name") in fault.verdicts and culprits in (None, verdict.get("culprits"))
    if not right or not named:
        return Answer(WRONG, said, took)
    return Answer(RIGHT if took <= ALLOWED_SECONDS else LATE, said, took)


def _slow(fault: Fault, watched: Watched) -> Answer:
    if not watched.alarms:
        return Answer(SILENT, f"exit code {watched.code}")
    first = watched.alarms[0]
    took = first["raised"] - (watched.began or 0.0)
    if first["kind"] != "straggler" or tuple(first["ranks"]) != fault.culprits:
        return Answer(WRONG, first["summary"], took)
    return Answer(RIGHT if took <= SLOW_SECONDS else LATE, first["summary"], took)


def _skipped(fault: Fault, watched: Watched) -> Answer:
    """The alarm has to come while the job goes on, which it does while the logs are analysed."""
    if not watched.alarms:
        return Answer(SILENT, f"exit code {watched.code}")
    first = watched.alarms[0]
    if first["kind"] != "divergence" or tuple(first["ranks"]) != fault.culprits:
        return Answer(WRONG, first["summary"])
    return Answer(RIGHT if watched.stalled > first["raised"] else LATE, first["summary"])


def _healthy(fault: Fault, watched: Watched) -> Answer:
    if watched.alarms:
        return Answer(FALSE, "; ".join(f"{alarm['kind']}: {alarm['summary']}" for alarm in watched.alarms))
    return Answer(RIGHT) if watched.code == 0 else Answer(WRONG, f"exit code {watched.code}")


# ---- a program and who watches it -----------------------------------------------------------------------------------
def watch(program: Program, directory: Path, nursery: Nursery) -> Watched:
    """Start a program, watch it until an alarm ends that or the job is over, and kill what is left."""
    directory.mkdir(parents=True)
    logs, output = directory / "logs", directory / "watch.jsonl"
    watcher = [sys.executable, "-m", "distdiag", "watch", str(logs), "--format", "json"]
    watcher += ["--exit-on", program.exit_on] if program.exit_on else []
    started = _start(program, directory, nursery)
    code = None
    try:
        with output.open("wb") as file, contextlib.suppress(subprocess.TimeoutExpired):
            code = subprocess.run(watcher, stdout=file, timeout=CAP_SECONDS, check=False).returncode
    finally:
        _end(started)
    lines = [json.loads(line) for line in output.read_bytes().splitlines() if line.endswith(b"}")]
    moments = list(_moments(logs))
    return Watched(
        alarms=tuple(line["alarm"] for line in lines if line["event"] in ("raised", "exit")),
        code=code,
        began=min((moment for begins, moment in moments if begins), default=None),
        stalled=max((moment for _, moment in moments), default=time.time()),
    )


def _start(program: Program, directory: Path, nursery: Nursery) -> list[Rank]:
    fault, port = program.fault, free_port()
    settings = {
        **surroundings(directory),
        "DISTDIAG_NATIVE_STACKS": "on",
        "DISTDIAG_STALL_AFTER": str(STALL_SECONDS),
        "LOCAL_WORLD_SIZE": str(fault.ranks),
        "PG_TIMEOUT": "600",
        **program.variables,
    }
    return [
        nursery.start(
            Order(
                script=fault.worker,
                arguments=[fault.name],
                variables={**settings, **launcher_variables(rank, fault.ranks, port)},
                directory=directory,
                stdout=directory / f"{rank}.err",
                stderr=directory / f"{rank}.err",
            )
        )
        for rank in range(fault.ranks)
    ]


def _end(started: Sequence[Rank]) -> None:
    for rank in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(rank.pid, signal.SIGKILL)
        rank.wait()


def _moments(logs: Path) -> Iterator[tuple[bool, float]]:
    """Yield the wall times of all signs of progress, and whether a step begins then."""
    for log in segments_of(logs) if logs.is_dir() else []:
        offset = 0
        for record in (events.decode(line) for file in log.files for line in read_lines(file)):
            if isinstance(record, events.Header):
                offset = record.wall_ns - record.monotonic_ns
            yield from ((begins, (moment + offset) / 1e9) for begins, moment in _told(record))


def _told(record: events.Event) -> list[tuple[bool, int]]:
    match record:
        case events.Call(start_ns=moment) | events.Phase(time_ns=moment) | events.Batch(time_ns=moment):
            return [(False, moment)]
        case events.Step(start_ns=int(start), end_ns=int(end)):
            return [(True, start), (False, end)]
    return []


if __name__ == "__main__":
    main()
