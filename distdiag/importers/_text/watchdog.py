"""What ProcessGroupNCCL's watchdog and its monitor say: time-outs, how far groups got, and what follows from them."""

import re
from collections.abc import Iterable, Iterator

from distdiag.importers._text.facts import CallSite, Frozen, Progress, Role, Waited, What
from distdiag.importers._text.kinds import BlockFamily, Family, nothing
from distdiag.importers._text.names import group_rank, group_tag, operation
from distdiag.importers._text.normalise import Line

MAX_AHEAD = 10_000_000
"""More outstanding work than that is an uninitialised counter: nothing completed yet."""
MAX_FRAMES = 64

_TIMEOUT = re.compile(
    r"Watchdog caught collective operation timeout: WorkNCCL\((?P<work>.*?)\) ran for (?P<lasted>\d+) milliseconds"
)
_FIELD = re.compile(r"(?P<name>\w+)(?:\(ms\))?=(?P<value>[^,)\s]+)")
_STATUS = re.compile(
    r"last enqueued(?: NCCL)? work: (?P<enqueued>-?\d+)(?:, last started(?: NCCL)? work: -?\d+)?"
    r", last completed(?: NCCL)? work: (?P<completed>-?\d+)",
    re.IGNORECASE,
)
_STUCK = re.compile(r"watchdog got stuck for (\d+) ?seconds")
_FRAME = re.compile(r"#\d+ (?P<function>.+?) from (?P<file>.+):(?P<line>\d+)$")
_STACK_BEGINS = re.compile(r"Stack trace of the failed collective:")


def timeout(line: Line) -> Iterator[What]:
    """Read the collective that gave up."""
    found = _TIMEOUT.search(line.text)
    if not found:
        return
    fields = {field["name"]: field["value"] for field in _FIELD.finditer(found["work"])}
    yield Waited(
        op=operation(fields.get("OpType", "unknown")),
        group=group_tag(line.text),
        group_rank=group_rank(line.text),
        seq=_number(fields.get("SeqNum")),
        numel=_number(fields.get("NumelIn")),
        output_numel=_number(fields.get("NumelOut")),
        timeout_ms=_number(fields.get("Timeout")),
        lasted_ms=int(found["lasted"]),
    )


def status(line: Line) -> Iterator[What]:
    """Read how far a group got."""
    found = _STATUS.search(line.text)
    if not found:
        return
    enqueued, completed = int(found["enqueued"]), int(found["completed"])
    yield Progress(
        group=group_tag(line.text),
        enqueued=max(0, enqueued),
        completed=completed if 0 <= completed <= enqueued and enqueued - completed < MAX_AHEAD else 0,
    )


def heartbeat(line: Line) -> Iterator[What]:
    """Read how long the watchdog thread could not run."""
    found = _STUCK.search(line.text)
    if found:
        yield Frozen(seconds=int(found[1]))


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


FAMILIES = (
    Family(
        name="watchdog-timeout",
        needles=("Watchdog caught collective operation timeout",),
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
        needles=("watchdog got stuck for",),
        role=Role.UNKNOWN,
        parse=heartbeat,
        ending=r"got stuck for \d+ ?seconds",
    ),
    Family(
        name="watchdog-consequence",
        needles=(
            "Some NCCL operations have failed or timed out",
            "To avoid data inconsistency",
            "watchdog thread terminated with exception",
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
)
