"""Which rank died of something of its own, and which only of what others did to it."""

import bisect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from signal import SIGKILL
from typing import Any

from distdiag.analyzers.investigation.accused import accused
from distdiag.analyzers.investigation.last_seen import LastSeen
from distdiag.analyzers.investigation.lives import CONNECTION, SECOND_NS, TIMEOUT, End, Life
from distdiag.analyzers.investigation.paths import Frames, location
from distdiag.analyzers.investigation.rows import records, whole
from distdiag.events import UNSIGNED
from distdiag.run import Run, user_frames

SILENCE_NS = 5 * SECOND_NS
"""Pulses come each second; a log that ends so long before the others' belongs to a process that was gone or frozen."""
NOTICED_NS = 5 * SECOND_NS
"""A killed process's sockets close at once; peers that wait for it, or come to, see that within seconds."""
LONG_BLOCKED_NS = 5 * SECOND_NS
"""A process that dies after so long in a wait for others is a victim: of a launcher, a watchdog or a cap."""
PULSE_NS = 1 * SECOND_NS
"""A process that gives no pulse any more has been gone for up to so long."""
OUT_OF_MEMORY = "out-of-memory"
EXIT, INTERPRETER = "exit", "interpreter"
"""Fault and place of the record of an orderly end."""
KILLED = "killed"
NO_SIGNAL = "its log ends without an exit"
"""What is said of a process that ended without a word, where nothing tells of a signal."""
ENDED = "end"
"""Fault of an imported text: a process that no rank is told of ended, as its launcher saw."""
MEMORY_ERROR = re.compile(r"OutOfMemoryError|MemoryError|CUDA out of memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """Ranks that died in the same way, of something of their own."""

    ranks: tuple[int, ...]
    time_ns: int
    cause: str
    """``exception``, ``out-of-memory``, ``killed``, ``exited`` or ``aborted``."""
    what: str
    """What a sentence says of it: the exception with its message, the signal, the exit code."""
    frames: Frames
    """User frames where it happened, outermost first."""
    step: int
    seen_by: tuple[int, ...] = ()
    """Ranks whose connection to a silent one broke."""
    came_up_as: str = ""
    """The exception that reached the top, where it was raised from the one that ``what`` says."""
    raised_by: tuple[int, ...] = ()
    """Ranks that raised an error which says that it is about ``ranks``."""
    reason: str = ""
    """Why it is about them, where errors had to be compared for that."""
    unnamed: str = ""
    """What a launcher calls it where no rank is told: ``local rank 3, process 812917``."""

    @property
    def site(self) -> str | None:
        """Return the ``file:line`` of the innermost user frame."""
        return location(self.frames[-1]) if self.frames else None


def deaths_of(run: Run, lives: Mapping[int, Life], blocked_since: Mapping[int, int]) -> tuple[Death, ...]:
    """Return the deaths that nobody else caused, the first one first.

    ``blocked_since`` tells since when a rank was blocked in a call it never came out of.
    """
    registry = _Registry(run, lives, blocked_since)
    single = [death for life in lives.values() if (death := registry.of(life)) is not None]
    single += registry.unsigned()
    # A log that was cut ends as that of a killed process does: its rank is named if no other can be.
    cut = set(run.quality.cut_ranks)
    sure = [death for death in single if not cut.intersection(death.ranks) or death.cause != KILLED]
    single = sure or single
    first_timeout = registry.first_timeout_ns()
    timely = [d for d in single if first_timeout is None or d.time_ns <= first_timeout]
    alike: dict[tuple[str, str, str | None], list[Death]] = {}
    for death in timely:
        alike.setdefault((death.cause, _without_numbers(death.what), death.site), []).append(death)
    return tuple(sorted(map(_together, alike.values()), key=lambda death: (death.time_ns, death.ranks)))


def _of_nobody(fault: Any) -> Death:
    """Return the death that an error, or a launcher, tells of a rank that nothing names."""
    cause, what = OUT_OF_MEMORY if fault.fault == OUT_OF_MEMORY else "exception", f"{fault.type}: {fault.message}"
    if fault.fault == ENDED:
        code = int(fault.code)
        cause = "killed" if code == -SIGKILL else "aborted" if code < 0 else "exited"
        what = (fault.type or f"signal {-code}") if code < 0 else f"exit code {code}"
    return Death(
        ranks=(),
        time_ns=int(fault.time_ns),
        cause=cause,
        what=what,
        frames=tuple(fault.frames),
        step=int(fault.step),
        unnamed=fault.message or "" if fault.fault == ENDED else "",
    )


def _together(deaths: Iterable[Death]) -> Death:
    """Return one death of several alike."""
    ordered = sorted(deaths, key=lambda death: (death.time_ns, death.ranks))
    first = ordered[0]
    about = accused({rank: death.what for death in ordered for rank in death.ranks}) if first.ranks else None
    if about is not None:
        return replace(
            first,
            ranks=about.ranks,
            what=about.what,
            frames=about.frames or first.frames,
            reason=about.reason,
            raised_by=tuple(sorted(rank for death in ordered for rank in death.ranks)),
        )
    return Death(
        ranks=tuple(sorted(rank for death in ordered for rank in death.ranks)),
        time_ns=first.time_ns,
        cause=first.cause,
        what=first.what,
        frames=first.frames,
        step=first.step,
        seen_by=tuple(sorted({rank for death in ordered for rank in death.seen_by})),
        came_up_as=first.came_up_as,
        unnamed=first.unnamed,
    )


def _without_numbers(text: str) -> str:
    # Messages name ranks, addresses and sizes that differ where the error is the same.
    return re.sub(r"0x[0-9a-f]+|\d+", "#", text)


def is_consequence(text: str) -> bool:
    """Return whether an error says that a wait gave up or the other side went away."""
    return bool(TIMEOUT.search(text) or CONNECTION.search(text))


def own_error(
    chain: Sequence[str], *, communicating: bool, failed_before: str | None = None, handled: str | None = None
) -> str | None:
    """Return ``type: message`` of the error in a chain that is the rank's own, None where others caused it.

    ``chain`` goes from the exception that came to the top to the first one. ``communicating`` says whether the rank
    had a call that failed or did not end, ``failed_before`` what such a call said before the exception came up, and
    ``handled`` which exception was being handled when that call was made.
    """
    if not communicating:
        return chain[0]
    if is_consequence(chain[0]):
        # A barrier in ``finally`` hides the error that led there.
        return next((text for text in chain if handled is not None and _type_of(text) == handled), None)
    if is_consequence(chain[-1]) or (failed_before is not None and is_consequence(failed_before)):
        return None
    return chain[0]


def _behind(fault: Any, error: str) -> str:
    """Return the first of the exceptions that an error was raised from: wrappers say where they noticed it."""
    direct = whole(fault.direct_causes) or 0
    behind = list(zip(fault.causes, fault.origins, strict=False))[:direct]
    if error != f"{fault.type}: {fault.message}" or not behind or is_consequence(behind[-1][0]):
        return error
    cause, origin = behind[-1]
    return cause if origin else error


def _raised_at(fault: Any, error: str) -> Frames:
    """Return where an error was raised: the exception that a fault records, or one of those behind it."""
    for cause, origin in zip(fault.causes, fault.origins, strict=False):
        if cause == error:
            return (origin,) if origin else ()
    return tuple(fault.frames)


def _type_of(text: str) -> str:
    return text.partition(":")[0].rpartition(".")[2]


class _Registry:
    """What the deaths of a run are told by, looked up once for all ranks."""

    def __init__(self, run: Run, lives: Mapping[int, Life], blocked_since: Mapping[int, int]) -> None:
        self._run, self._lives, self._blocked_since = run, lives, blocked_since
        self._last_seen = LastSeen(run)
        calls, faults = run.calls, run.faults
        self._left = {int(fault.rank): fault for fault in records(faults[faults["where"] == INTERPRETER])}
        self._uncaught: dict[int, list[Any]] = {}
        for fault in records(faults[faults["where"] == "uncaught"]):
            self._uncaught.setdefault(int(fault.rank), []).append(fault)
        unfinished = calls[calls["end_ns"].isna() & ~calls["captured"]]
        self._unfinished = frozenset(int(rank) for rank in unfinished["rank"].unique())
        self._handling = calls[calls["handling"].notna()]
        during_failed = self._handling[self._handling["failed"]].drop_duplicates("rank")
        self._handled = dict(zip(during_failed["rank"].tolist(), during_failed["handling"].tolist(), strict=True))
        self._failures = {rank: life.failed_ns for rank, life in lives.items() if life.failed_ns is not None}
        self._said = {rank: lives[rank].failure or "" for rank in self._failures}
        self._first_timeout_ns = min(self._saying(TIMEOUT).values(), default=None)
        self._failure_times = sorted(self._failures.values())
        self._broken = self._saying(CONNECTION)
        self._newest_ns = max((life.last_ns for life in lives.values()), default=0)
        self._long_blocked: dict[End, list[int]] = {}
        for life in sorted(lives.values(), key=lambda life: life.last_ns):
            if self._had_long_been_blocked(life):
                self._long_blocked.setdefault(life.end, []).append(life.last_ns)

    def _saying(self, pattern: re.Pattern[str]) -> dict[int, int]:
        """Return when the ranks failed whose failure says something."""
        return {rank: at for rank, at in self._failures.items() if pattern.search(self._said[rank])}

    def unsigned(self) -> list[Death]:
        """Return the deaths of ranks that their error does not tell."""
        faults = self._run.faults
        return [_of_nobody(fault) for fault in records(faults[faults["where"] == UNSIGNED])]

    def first_timeout_ns(self) -> int | None:
        """Return when the first rank gave up waiting."""
        return self._first_timeout_ns

    def of(self, life: Life) -> Death | None:
        """Return how a rank died of something of its own."""
        return self.raised(life) or self.ended(life) or self.left(life)

    def raised(self, life: Life) -> Death | None:
        """Return the death by an exception that reached the top of the main thread."""
        for fault in self._uncaught.get(life.rank, ()):
            chain = [f"{fault.type}: {fault.message}", *fault.causes]
            failed_first = life.failed_ns is not None and life.failed_ns < fault.time_ns
            error = own_error(
                chain,
                communicating=life.failed_ns is not None or life.rank in self._unfinished,
                failed_before=life.failure if failed_first else None,
                handled=self._handled.get(life.rank),
            )
            if error is not None:
                root = _behind(fault, error)
                told = root if root.partition(": ")[2].strip() else error
                memory = fault.fault == OUT_OF_MEMORY or any(MEMORY_ERROR.search(text) for text in chain)
                return Death(
                    ranks=(life.rank,),
                    time_ns=self._when(life, fault, error),
                    cause=OUT_OF_MEMORY if memory else "exception",
                    what=told,
                    came_up_as=error if told != error else "",
                    frames=_raised_at(fault, root),
                    step=int(fault.step),
                )
        return None

    def left(self, life: Life) -> Death | None:
        """Return the death by ``sys.exit`` with a code that says that something failed."""
        exit_record = self._left.get(life.rank)
        if exit_record is None or life.end is not End.ORDERLY or not whole(exit_record.code):
            return None
        if life.rank in self._uncaught:
            return None
        chain, error = list(exit_record.causes), None
        if chain:
            failed_first = life.failed_ns is not None and life.failed_ns < exit_record.time_ns
            error = own_error(
                chain,
                communicating=life.failed_ns is not None or life.rank in self._unfinished,
                failed_before=life.failure if failed_first else None,
            )
        if error is None and (chain or life.failed_ns is not None):
            return None  # it gave up because others did not come
        memory = error is not None and MEMORY_ERROR.search(error)
        return Death(
            ranks=(life.rank,),
            time_ns=int(exit_record.time_ns),
            cause="exited" if error is None else OUT_OF_MEMORY if memory else "exception",
            what=f"sys.exit({int(exit_record.code)})" if error is None else error,
            frames=tuple(exit_record.frames) if error is None else _raised_at(exit_record, error),
            step=int(exit_record.step),
        )

    def _when(self, life: Life, fault: Any, error: str) -> int:
        """Return when an exception came up: what is uncaught at last may have been raised before a failed call."""
        if life.failed_ns is None or fault.time_ns < life.failed_ns:
            return int(fault.time_ns)
        handling = self._handling
        during = handling[(handling["rank"] == life.rank) & (handling["handling"] == _type_of(error))]
        # The error came before the call that was made while handling it.
        return int(during["start_ns"].iloc[0]) - 1 if len(during) else int(fault.time_ns)

    def ended(self, life: Life) -> Death | None:
        """Return the death of a process that could not say why."""
        if self._had_long_been_blocked(life):
            return None
        if life.end in (End.KILLED, End.FAILED):
            return self._seen_by_launcher(life)
        if life.end is End.ABORTED:
            frames = tuple(user_frames(life.crash_frames))
            return self._death(life, "aborted", life.signal or "a fatal signal", frames)
        if life.end is End.HARD_EXIT and (life.code or self._failed_after(life)):
            return self._death(life, "exited", f"os._exit({life.code})")
        if life.end in (End.SILENT, End.TORN_DOWN) and life.failed_ns is None and not self._all_were_ended(life):
            seen_by = self._saw_it_go(life)
            if seen_by:
                signal = "SIGTERM" if life.end is End.TORN_DOWN else "SIGKILL"
                return self._death(life, "killed", signal, seen_by=seen_by)
        return None

    def _had_long_been_blocked(self, life: Life) -> bool:
        since_ns = self._blocked_since.get(life.rank)
        return since_ns is not None and life.end_ns - since_ns > LONG_BLOCKED_NS

    def _all_were_ended(self, life: Life) -> bool:
        """Return whether ranks that had long been waiting ended without a word at the same moment."""
        moments = self._long_blocked.get(life.end, [])
        first = bisect.bisect_left(moments, life.last_ns - 2 * PULSE_NS)
        return first < len(moments) and moments[first] <= life.last_ns + 2 * PULSE_NS

    def _seen_by_launcher(self, life: Life) -> Death | None:
        if life.failed_ns is not None:
            return None  # it had given up a wait before
        if life.end is End.KILLED:
            return self._death(life, "killed", life.signal or "a signal")
        return self._death(life, "exited", f"exit code {life.code}")

    def _failed_after(self, life: Life) -> bool:
        return any(failed_ns >= life.end_ns for failed_ns in self._failure_times[-1:])

    def _death(self, life: Life, cause: str, what: str, frames: Frames = (), seen_by: tuple[int, ...] = ()) -> Death:
        return Death(
            ranks=(life.rank,),
            time_ns=self._moment(life),
            cause=cause,
            what=what,
            frames=frames or self._last_seen.path(life.rank),
            step=self._last_seen.step(life.rank),
            seen_by=seen_by,
        )

    def _moment(self, life: Life) -> int:
        """Return when a process was gone: it could not say, but its pulse stopped and connections to it broke."""
        if life.end is End.HARD_EXIT:
            return life.end_ns
        after = bisect.bisect_right(self._failure_times, life.last_ns)
        return min([life.last_ns + PULSE_NS, *self._failure_times[after : after + 1]])

    def _saw_it_go(self, life: Life) -> tuple[int, ...]:
        """Return the ranks whose connection broke after a silent rank's last record, nobody having given up before."""
        if self._first_timeout_ns is not None and self._first_timeout_ns <= life.last_ns:
            return ()
        broken = {rank: at for rank, at in self._broken.items() if at >= life.last_ns - SECOND_NS}
        at_once = tuple(rank for rank, at in broken.items() if at - life.last_ns <= NOTICED_NS)
        if at_once:
            return at_once
        # Peers that were busy notice only when they come to their next collective.
        return tuple(broken) if self._newest_ns - life.last_ns > SILENCE_NS else ()
