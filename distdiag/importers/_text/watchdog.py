"""What ProcessGroupNCCL's watchdog and its monitor say: time-outs, how far groups got, and what follows from them."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from distdiag.importers._text.exceptions import LAST_ERROR, MAX_MESSAGE_LINES, of_watchdog, role_of, telling_first
from distdiag.importers._text.facts import CallSite, Frozen, Progress, Raised, Role, Signalled, Waited, What
from distdiag.importers._text.kinds import BlockFamily, Family, nothing
from distdiag.importers._text.names import group_rank, group_tag, operation
from distdiag.importers._text.normalise import Line

MAX_AHEAD = 10_000_000
"""More outstanding work than that is an uninitialised counter: nothing completed yet."""
MAX_FRAMES = 64

_TIMEOUT = re.compile(
    r"(?:Watchdog c|\] C)aught collective operation timeout: WorkNCCL\((?P<work>.*?)\)"
    r" ran for (?P<lasted>\d+) milliseconds"
)
_FIELD = re.compile(r"(?P<name>\w+)(?:\(ms\))?=(?P<value>[^,)\s]+)")
_STATUS = re.compile(
    r"last enqueued(?: NCCL)? work: (?P<enqueued>-?\d+)(?:, last started(?: NCCL)? work: -?\d+)?"
    r", last completed(?: NCCL)? work: (?P<completed>-?\d+)",
    re.IGNORECASE,
)
_FAILED_WORK = re.compile(r"(?:Timeout at NCCL work|at work(?: sequence id)?): (?P<work>\d+)")
_SIGNALLED = re.compile(r"dump signal due to a collective timeout from +(?:this local rank|rank (?P<rank>\d+))")
_STUCK = re.compile(r"watchdog got stuck for (?P<seconds>\d+) ?seconds|Heartbeat monitor timed out")
_FRAME = re.compile(r"#\d+ (?P<function>.+?) from (?P<file>.+):(?P<line>\d+)$")
_ASYNC = re.compile(
    r"(?:Collective Work\w+\((?P<work>.*?)\) raised the following"
    r"|[Ff]ound) async exception(?: when checking for NCCL errors)?: (?P<error>.+)"
)
_GOES_ON = re.compile(r"nccl\w+:|Last error:")
_STACK_BEGINS = re.compile(r"Stack trace of the failed collective:")


def timeout(line: Line) -> Iterator[What]:
    """Read the collective that gave up."""
    found = _TIMEOUT.search(line.text)
    if found:
        yield replace(_work(line, found["work"]), lasted_ms=int(found["lasted"]))


def _work(line: Line, work: str) -> Waited:
    """Return the collective that a line tells of, the fields of its work given."""
    fields = {field["name"]: field["value"] for field in _FIELD.finditer(work)}
    return Waited(
        op=operation(fields.get("OpType", "unknown")),
        group=group_tag(line.text),
        group_rank=group_rank(line.text),
        seq=_number(fields.get("SeqNum")),
        numel=_number(fields.get("NumelIn")),
        output_numel=_number(fields.get("NumelOut")),
        timeout_ms=_number(fields.get("Timeout")),
    )


def status(line: Line) -> Iterator[What]:
    """Read how far a group got."""
    found = _STATUS.search(line.text)
    if not found:
        return
    enqueued, completed = int(found["enqueued"]), int(found["completed"])
    failed, signalled = _FAILED_WORK.search(line.text, 0, found.start()), _SIGNALLED.search(line.text)
    yield Progress(
        group=group_tag(line.text),
        enqueued=max(0, enqueued),
        completed=completed if 0 <= completed <= enqueued and enqueued - completed < MAX_AHEAD else 0,
        failed=int(failed["work"]) if failed else None,
    )
    if signalled and (signalled["rank"] or line.rank is not None):
        yield Signalled(rank=int(signalled["rank"]) if signalled["rank"] else line.rank or 0)


def heartbeat(line: Line) -> Iterator[What]:
    """Read how long the watchdog thread could not run."""
    found = _STUCK.search(line.text)
    if found:
        yield Frozen(seconds=int(found["seconds"] or 0))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


class _FailedCollective:
    """The stack of the collective that gave up, as the flight recorder kept it."""

    def __init__(self, line: Line) -> None:
        self._frames: list[str] = []
        rest = _STACK_BEGINS.split(line.text)[-1].strip()
        if rest:
            self._take(rest)

    def feed(self, line: Line) -> bool:
        return self._take(line.text.strip()) or (not line.text.strip() and not self._frames)

    def close(self) -> Iterable[tuple[What, Role]]:
        if self._frames:
            yield CallSite(frames=tuple(self._frames)), Role.CASCADE

    def _take(self, text: str) -> bool:
        found = _FRAME.match(text)
        if not found or len(self._frames) >= MAX_FRAMES:
            return False
        self._frames.append(f"{found['file']}:{found['line']} {found['function']}")
        return True


class _Broken:
    """An error of NCCL that ended a collective, with what NCCL itself says of it in the next lines."""

    def __init__(self, waited: Waited, error: str) -> None:
        self._waited, self._message = waited, [error]

    def feed(self, line: Line) -> bool:
        text = line.text.strip()
        belongs = _GOES_ON.match(text) or (text and self._message[-1] == LAST_ERROR)
        if line.source is not None or not belongs or len(self._message) > MAX_MESSAGE_LINES:
            return False
        self._message.append(text)
        return True

    def close(self) -> Iterable[tuple[What, Role]]:
        waited = self._waited
        raised = Raised(
            type="DistBackendError",
            message=telling_first("\n".join(self._message)),
            uncaught=True,
            group=waited.group,
            group_rank=waited.group_rank,
        )
        role = role_of(raised)
        if role is Role.CASCADE and waited.op:
            yield replace(waited, error=f"{raised.type}: {raised.message}"), role
        else:
            yield raised, role


def _broken(line: Line) -> _Broken | None:
    found = _ASYNC.search(line.text)
    return _Broken(_work(line, found["work"] or ""), found["error"].strip()) if found else None


class _Ended:
    """What ended a watchdog thread other than a time-out: an error of the device or of NCCL, which ends the process."""

    def __init__(self, raised: Raised) -> None:
        self._raised = raised

    def feed(self, line: Line) -> bool:
        del line
        return False

    def close(self) -> Iterable[tuple[What, Role]]:
        yield self._raised, role_of(self._raised)


def _ended(line: Line) -> _Ended | None:
    raised = of_watchdog(line.text)
    return _Ended(raised) if raised is not None else None


FAMILIES = (
    Family(
        name="watchdog-timeout",
        needles=("Watchdog caught collective operation timeout", "] Caught collective operation timeout"),
        role=Role.CASCADE,
        parse=timeout,
        ending=r"ran for \d+ milliseconds",
    ),
    Family(
        name="group-status",
        needles=("ast enqueued NCCL work", "ast enqueued work"),
        role=Role.CASCADE,
        parse=status,
        ending=r"last completed(?: NCCL)? work: -?\d+",
    ),
    Family(
        name="heartbeat",
        needles=("watchdog got stuck for", "Heartbeat monitor timed out"),
        role=Role.UNKNOWN,
        parse=heartbeat,
        ending=r"got stuck for \d+ ?seconds|Heartbeat monitor timed out",
    ),
    Family(
        name="watchdog-thread-ended",
        needles=("watchdog thread terminated with exception",),
        role=Role.TEARDOWN,
        parse=nothing,
        ending=r"terminated with exception(?!: \[Rank \d+\] *$)",
    ),
    Family(
        name="watchdog-consequence",
        needles=(
            "Some NCCL operations have failed or timed out",
            "To avoid data inconsistency",
            "dump signal",
            "First PG on this rank to signal dumping",
            "preparing to dump debug info",
            "FlightRecorder is disabled",
            "Exception raised from ",
        ),
        role=Role.TEARDOWN,
        parse=nothing,
    ),
)

BLOCKS = (
    BlockFamily(
        name="failed-collective-stack", needles=("Stack trace of the failed collective:",), open=_FailedCollective
    ),
    BlockFamily(name="broken-collective", needles=("async exception",), open=_broken),
    BlockFamily(name="watchdog-ended", needles=("watchdog thread terminated with exception: ",), open=_ended),
)
