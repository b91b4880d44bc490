"""These logs do not suffice for a verdict that could be trusted.

What it means
    Something about the logs themselves contradicts itself or is missing in so many places that an accusation
    would be a guess: two processes claim the same rank, the ranks disagree on how many they are, logs lack
    their header and with it their clock, the ops of calls are unknown, nothing was recorded at all, or what was
    printed tells only of consequences.

How it is found
    Headers, ranks, world sizes and signatures of all logs are compared while they are read.

What to do
    See the evidence: it names the ranks and files. Usually two launches wrote into one directory, a launcher
    gave the same RANK twice, or only the end of a log was copied.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pandas as pd

from distdiag.analyzers._wording import counted, named, seconds, verb
from distdiag.analyzers.investigation import investigate
from distdiag.analyzers.investigation.advice import advice_on
from distdiag.analyzers.investigation.incident import Absence, Incident, Unexplained
from distdiag.analyzers.investigation.paths import location, short
from distdiag.analyzers.investigation.rows import oldest
from distdiag.analyzers.investigation.sources import in_words, only_text, unread
from distdiag.analyzers.performance.job import KINDS
from distdiag.analyzers.performance.what_if import why_not
from distdiag.analyzers.summary.positions import newest_by_rank
from distdiag.events import CONSEQUENCE, STUCK_WATCHDOG, TELLING
from distdiag.findings import Confidence, Finding, Severity
from distdiag.run import Run

LONGEST = 200
_SOURCE = re.compile(r"\[\S+\.(?:cc|cpp|h|hpp):\d+\] ")
"""Where in the library's own code an error came up; it says nothing to whoever reads of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hearsay:
    """The most that is told of what went wrong."""

    reason: str
    evidence: tuple[str, ...]
    action: tuple[str, ...]


def hearsay(run: Run) -> Hearsay | None:
    """Return what is told of a failure, None where nothing is."""
    warnings = run.faults[run.faults["where"] == TELLING]
    evidence = tuple(dict.fromkeys(str(text) for text in warnings.sort_values("time_ns")["message"]))
    found = next((each for each in _told(run, warnings) if each is not None), None)
    if found is None:
        return None
    return Hearsay(reason=found, evidence=evidence, action=advice_on(found, *evidence))


def _told(run: Run, warnings: pd.DataFrame) -> Iterator[str | None]:
    yield _warned(warnings)
    yield _suffered(run.faults[run.faults["where"] == CONSEQUENCE])
    yield _held_up(run.faults[run.faults["type"] == STUCK_WATCHDOG])
    yield _behind(run)


def _warned(warnings: pd.DataFrame) -> str | None:
    return f"{oldest(warnings)['message']}" if len(warnings) else None


def _suffered(consequences: pd.DataFrame) -> str | None:
    if consequences.empty:
        return None
    first = oldest(consequences)
    frames = tuple(first["frames"])
    site = f" ({short(location(frames[-1]))})" if frames else ""
    said = _SOURCE.sub("", f"{first['type']}: {first['message']}".splitlines()[0])[:LONGEST].rstrip(": ")
    return (
        f"a rank that nothing names gave up on others, or lost them{site}: {said}\n"
        "Others did that to it: the cause is in what another process printed"
    )


def _held_up(stuck: pd.DataFrame) -> str | None:
    if stuck.empty:
        return None
    ranks = sorted({int(rank) for rank in stuck["rank"]})
    longest = max(
        (int(found[1]) for text in stuck["message"] if (found := re.search(r"(\d+) s", str(text)))), default=0
    )
    lasted = f" for {longest} s" if longest else ""
    return (
        f"NCCL's watchdog {verb(ranks, 'thread', 'threads')} of {named(ranks)} could not run{lasted}\n"
        "A call into CUDA or NCCL, or the interpreter's lock, held them up; no collective is named"
    )


def _behind(run: Run) -> str | None:
    if run.statuses.empty:
        return None
    open_work = run.statuses[run.statuses["last_completed"] < run.statuses["last_enqueued"]]
    if open_work.empty:
        return None
    first = oldest(open_work)
    return (
        f"rank {int(first['rank'])} had completed {int(first['last_completed'])} of the {int(first['last_enqueued'])} "
        "operations that it issued, and what it waited for is not told"
    )


CODE = "DD105"
NAME = "insufficient-evidence"
_ASK_FOR = "get the logs of all ranks, and what the launcher and the scheduler say of the end of the job"
START_TOGETHER_NS = 60_000_000_000
"""Ranks of one launch begin to record within this time of each other, unless an import was very slow."""
MOST_NAMED = 4
TOO_MANY_UNKNOWN = 0.01
"""Share of calls of unknown op beyond which the order of calls cannot be compared."""


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for each way in which the logs contradict themselves or say too little."""
    beside = run.faults[run.faults["where"] == TELLING]["message"].tolist()
    for incident in investigate(run).named(NAME):
        untold = _untold(run, incident)
        yield incident.finding(CODE, untold, (*advice_on(untold, *map(str, beside)), _ASK_FOR))
    yield from _hearsay(run)
    yield from _doubled(run)
    yield from _worlds(run)
    yield from _apart(run)
    yield from _lost(run)
    if (reason := why_not(run)) is not None:
        yield _finding(
            f"the measured operations cannot be simulated: {reason}",
            (f"{counted(len(run.operations), 'operation')} of {counted(run.operations['rank'].nunique(), 'worker')}",),
            f"name operations as Megatron's timelines do: {', '.join(KINDS)}",
        )
    records = (run.calls, run.steps, run.phases, run.faults, run.statuses)
    if not run.only_measured and all(frame.empty for frame in records):
        yield _finding(
            f"the logs of {named(run.ranks)} hold no call, step, phase or fault",
            (f"{counted(run.quality.files, 'file')} of {run.quality.bytes} bytes",),
            "check that distdiag.install() runs before training, and that the job got as far as that",
        )


def of_failures(failures: Mapping[str, str]) -> Finding:
    """Return the finding that says which analyzers failed, by name with the error: what they look for is unknown."""
    names = sorted(failures)
    some = names[:MOST_NAMED] + [f"{len(names) - MOST_NAMED} others"] * (len(names) > MOST_NAMED)
    return _finding(
        f"distdiag itself failed while it looked for {', '.join(some)}: whether these are there is not known",
        tuple(dict.fromkeys(f"{failures[name]} ({name})" for name in names))[:MOST_NAMED],
        "what else was found stands; please report it with these lines (DISTDIAG_RAISE=1 shows the traceback)",
    )


def _untold(run: Run, incident: Incident) -> str:
    basis = incident.basis
    if isinstance(basis, Absence):
        waiters, unknown = sorted(basis.wait.waiters), sorted(basis.wait.unknown)
        return (
            f"{named(waiters)} {verb(waiters, 'waits', 'wait')} in {incident.operation}{incident.at_step}, "
            f"and {unread(run, unknown)}\n"
            f"Every other rank came; whether {named(unknown)} did is what these logs cannot say."
        )
    reason = basis.reason if isinstance(basis, Unexplained) else incident.operation
    return f"these logs do not say what happened: {reason}"


def _hearsay(run: Run) -> Iterator[Finding]:
    """Yield a finding where texts tell of a failure, and of no cause that has a name."""
    investigation = investigate(run)
    heard = hearsay(run) if only_text(run) and not investigation.incidents else None
    if heard is not None:
        finding = _finding(f"these texts name no rank that began it: {heard.reason}", heard.evidence, _ASK_FOR)
        evidence = (*heard.evidence, in_words(run) or "")
        yield replace(finding, confidence=Confidence.LOW, evidence=evidence, action=(*heard.action, _ASK_FOR))


def _doubled(run: Run) -> Iterator[Finding]:
    doubled = run.quality.doubled_ranks
    if doubled:
        yield _finding(
            f"{named(doubled)} {verb(doubled, 'was', 'were')} claimed by several processes at the same time",
            tuple(f"rank {rank}: processes {', '.join(map(str, pids))}" for rank, pids in doubled.items()),
            "check RANK and WORLD_SIZE of every process: LOCAL_RANK used as RANK gives each host the same ranks",
        )


def _worlds(run: Run) -> Iterator[Finding]:
    sizes = run.quality.world_sizes
    if len(sizes) > 1:
        yield _finding(
            f"the ranks disagree on the size of their world: {' and '.join(map(str, sizes))}",
            tuple(
                f"world of {size}: {named(run.headers.loc[run.headers['world_size'] == size, 'rank'])}"
                for size in sizes
            ),
            "give each launch a log directory of its own, and the same WORLD_SIZE to all its processes",
        )


def _apart(run: Run) -> Iterator[Finding]:
    """Yield a finding where some ranks had ended long before others began, unless their clocks were aligned."""
    corrected = run.quality.clock_corrections_ns
    headers = zip(run.headers["rank"].tolist(), run.headers["wall_ns"].tolist(), strict=True)
    begun = {rank: wall_ns + corrected.get(rank, 0) for rank, wall_ns in headers}
    ended = {rank: moment for rank, moment in newest_by_rank(run).items() if rank in begun}
    if len(ended) < 2:
        return
    last_begun, first_ended = max(begun.values()), min(ended.values())
    if last_begun - first_ended < START_TOGETHER_NS:
        return
    early = [rank for rank, moment in ended.items() if moment + START_TOGETHER_NS < last_begun]
    late = [rank for rank, moment in begun.items() if moment > first_ended + START_TOGETHER_NS]
    yield _finding(
        f"the logs of {named(early)} end {seconds(last_begun - first_ended)} before those of {named(late)} begin",
        ("one launch's ranks begin together, so these are of two launches, or the hosts' clocks are far apart",),
        "give each launch a log directory of its own; check the hosts' clocks: chronyc tracking",
    )


def _lost(run: Run) -> Iterator[Finding]:
    quality = run.quality
    if quality.headerless_ranks:
        yield _finding(
            f"{_logs(quality.headerless_ranks)} without a header, so the clock is unknown",
            ("moments of these ranks cannot be compared with those of others",),
            "copy these logs again, from their beginning",
        )
    if quality.unresolved_calls > TOO_MANY_UNKNOWN * max(1, len(run.calls)):
        yield _finding(
            f"the op and group of {counted(quality.unresolved_calls, 'call')} of {len(run.calls)} are unknown",
            ("the records that describe them are not in these logs",),
            "copy the logs again, from their beginning and with all their segments",
        )


def _logs(ranks: tuple[int, ...]) -> str:
    return f"the {verb(ranks, 'log', 'logs')} of {named(ranks)} {verb(ranks, 'is', 'are')}"


def _finding(summary: str, evidence: tuple[str, ...], action: str) -> Finding:
    return Finding(
        code=CODE,
        name=NAME,
        severity=Severity.WARNING,
        summary=summary,
        confidence=Confidence.HIGH,
        evidence=evidence,
        action=(action,),
    )
