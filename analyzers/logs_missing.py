"""Logs of some ranks are not there.

What it means
    The job had more ranks than there are logs, so what the other ranks did is unknown. A rank without a log
    may never have started, may have died before recording began, or its log was not copied. Findings that
    need every rank are not made, others are less sure.

How it is found
    The world size that the logs tell is compared with the ranks that have a readable log. Logs that are
    empty, unreadable, of another launch, of a newer schema, or that tell no rank do not count.

What to do
    Copy the logs of all hosts into one directory; each host writes its own ranks. If a rank has no log
    anywhere, look at what its launcher printed: it did not get as far as ``distdiag.install()``.
"""

from collections.abc import Iterator, Sequence

from distdiag.analyzers._wording import counted, named, verb
from distdiag.analyzers.investigation.sources import only_text
from distdiag.findings import Confidence, Finding, Severity
from distdiag.run import Run

CODE = "DD101"
NAME = "logs-missing"
MOST_FILES = 6
"""File names said one by one."""


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding that names the ranks without a readable log, and one for logs that were left out."""
    quality = run.quality
    if run.missing:
        have = verb(run.missing, "has", "have")
        text = only_text(run)
        said = f"nothing in these texts is of {named(run.missing)}, and the job may have had more ranks"
        yield Finding(
            code=CODE,
            name=NAME,
            severity=Severity.INFO if text else Severity.WARNING,  # who printed nothing need not be missing
            summary=said if text else f"{named(run.missing)} of a world of {run.world_size} {have} no log here",
            confidence=Confidence.HIGH,
            evidence=(f"logs of {counted(len(run.ranks), 'rank')} were read: {named(run.ranks)}", *_reasons(run)),
            action=(
                f"copy the logs of {named(run.missing)} from their hosts into this directory, and analyse it again",
                "if there are none, read what the launcher printed for those ranks: recording never began there",
            ),
        )
    left_out = [*quality.other_runs, *quality.unsupported_files]
    if left_out:
        yield Finding(
            code=CODE,
            name=NAME,
            severity=Severity.WARNING,
            summary=_left_out(run),
            confidence=Confidence.HIGH,
            evidence=(f"launch {quality.run} began last, so it is the one that was analysed", *_reasons(run)),
            action=("give each launch a log directory of its own: DISTDIAG_DIR=logs/$JOB_ID",),
        )


def _left_out(run: Run) -> str:
    quality = run.quality
    parts = []
    if quality.other_runs:
        launches = ", ".join(quality.other_runs[:MOST_FILES])
        parts.append(f"logs of other launches ({launches}) lie in the same directory and were left out")
    if quality.unsupported_files:
        schemas = ", ".join(sorted(set(quality.unsupported_files.values())))
        files = counted(len(quality.unsupported_files), "file")
        parts.append(f"{files} of the newer schema {schemas} could not be read")
    return "; ".join(parts)


def _reasons(run: Run) -> Iterator[str]:
    quality = run.quality
    if quality.empty_files:
        yield f"empty: {_listed(quality.empty_files)}"
    if quality.unreadable_files:
        yield f"without a readable record: {_listed(quality.unreadable_files)}"
    if quality.unsupported_files:
        yield f"of a newer schema: {_listed(tuple(quality.unsupported_files))}"
    if quality.nameless_files:
        yield f"without a rank: {_listed(quality.nameless_files)}"
    if quality.other_runs:
        yield f"of other launches: {_listed(quality.other_runs)}"
    yield from quality.notes[:MOST_FILES]


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_FILES
    return ", ".join(names[:MOST_FILES]) + (f" and {more} more" if more > 0 else "")
