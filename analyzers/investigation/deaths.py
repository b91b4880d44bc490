"""Which rank died of something of its own, and which only of what others did to it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distdiag.analyzers.investigation.lives import CONNECTION, SECOND_NS, TIMEOUT, End, Life
from distdiag.analyzers.investigation.paths import Frames, location
from distdiag.analyzers.investigation.rows import newest, records
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
UNSIGNED = "unsigned"
"""Where of an error in text that does not say whose it is."""
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

    @property
    def site(self) -> str | None:
        """Return the ``file:line`` of the innermost user frame."""
        return location(self.frames[-1]) if self.frames else None


def deaths_of(run: Run, lives: Mapping[int, Life], blocked_since: Mapping[int, int]) -> tuple[Death, ...]:
    """Return the deaths that nobody else caused, the first one first.

    ``blocked_since`` tells since when a rank was blocked in a call it never came out of.
    """
    registry = _Registry(run, lives, blocked_since)
    single = [death for life in lives.values() if (death := registry.raised(life) or registry.ended(life)) is not None]
    single += registry.unsigned()
    first_timeout = registry.first_timeout_ns()
    timely = [d for d in single if first_timeout is None or d.time_ns <= first_timeout]
    alike: dict[tuple[str, str, str | None], list[Death]] = {}
    for death in timely:
        alike.setdefault((death.cause, _without_numbers(death.what), death.site), []).append(death)
    return tuple(sorted(map(_together, alike.values()), key=lambda death: (death.time_ns, death.ranks)))


def _together(deaths: Iterable[Death]) -> Death:
    """Return one death of several alike."""
    ordered = sorted(deaths, key=lambda death: (death.time_ns, death.ranks))
    first = ordered[0]
    return Death(
        ranks=tuple(sorted(rank for death in ordered for rank in death.ranks)),
        time_ns=first.time_ns,
        cause=first.cause,
        what=first.what,
        frames=first.frames,
        step=first.step,
        seen_by=tuple(sorted({rank for death in ordered for rank in death.seen_by})),
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


def _type_of(text: str) -> str:
    return text.partition(":")[0].rpartition(".")[2]


class _Registry:
    """What the deaths of a run are told by, looked up once for all ranks."""

    def __init__(self, run: Run, lives: Mapping[int, Life], blocked_since: Mapping[int, int]) -> None:
        self._run, self._lives, self._blocked_since = run, lives, blocked_since
        calls, faults = run.calls, run.faults
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

    def unsigned(self) -> list[Death]:
        """Return the deaths of ranks that their error does not tell."""
        faults = self._run.faults
        return [
            Death(
                ranks=(),
                time_ns=int(fault.time_ns),
                cause=OUT_OF_MEMORY if fault.fault == OUT_OF_MEMORY else "exception",
                what=f"{fault.type}: {fault.message}",
                frames=tuple(fault.frames),
                step=int(fault.step),
            )
            for fault in records(faults[faults["where"] == UNSIGNED])
        ]

    def first_timeout_ns(self) -> int | None:
        """Return when the first rank gave up waiting."""
        timeouts = [failed_ns for rank, failed_ns in self._failures.items() if TIMEOUT.search(self._said[rank])]
        return min(timeouts, default=None)

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
                memory = fault.fault == OUT_OF_MEMORY or any(MEMORY_ERROR.search(text) for text in chain)
                return Death(
                    ranks=(life.rank,),
                    time_ns=self._when(life, fault, error),
                    cause=OUT_OF_MEMORY if memory else "exception",
                    what=error,
                    frames=tuple(fault.frames),
                    step=int(fault.step),
                )
        return None

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
        return any(
            other is not life
            and other.end is life.end
            and abs(other.last_ns - life.last_ns) <= 2 * PULSE_NS
            and self._had_long_been_blocked(other)
            for other in self._lives.values()
        )

    def _seen_by_launcher(self, life: Life) -> Death | None:
        if life.failed_ns is not None:
            return None  # it had given up a wait before
        if life.end is End.KILLED:
            return self._death(life, "killed", life.signal or "a signal")
        return self._death(life, "exited", f"exit code {life.code}")

    def _failed_after(self, life: Life) -> bool:
        return any(rank != life.rank and failed_ns >= life.end_ns for rank, failed_ns in self._failures.items())

    def _death(self, life: Life, cause: str, what: str, frames: Frames = (), seen_by: tuple[int, ...] = ()) -> Death:
        return Death(
            ranks=(life.rank,),
            time_ns=self._moment(life),
            cause=cause,
            what=what,
            frames=frames or last_path(self._run, life.rank),
            step=_last_step(self._run, life.rank),
            seen_by=seen_by,
        )

    def _moment(self, life: Life) -> int:
        """Return when a process was gone: it could not say, but its pulse stopped and connections to it broke."""
        if life.end is End.HARD_EXIT:
            return life.end_ns
        broken = [failed_ns for rank, failed_ns in self._failures.items() if rank != life.rank]
        return min([life.last_ns + PULSE_NS, *(failed_ns for failed_ns in broken if failed_ns > life.last_ns)])

    def _saw_it_go(self, life: Life) -> tuple[int, ...]:
        """Return the ranks whose connection broke after a silent rank's last record, nobody having given up before."""
        failures = {rank: failed_ns for rank, failed_ns in self._failures.items() if rank != life.rank}
        if any(TIMEOUT.search(self._said[rank]) and at <= life.last_ns for rank, at in failures.items()):
            return ()
        after = {rank: at for rank, at in failures.items() if at >= life.last_ns - SECOND_NS}
        broken = {rank: at for rank, at in after.items() if CONNECTION.search(self._said[rank])}
        at_once = tuple(rank for rank, at in broken.items() if at - life.last_ns <= NOTICED_NS)
        if at_once:
            return at_once
        # Peers that were busy notice only when they come to their next collective.
        others_last = max((o.last_ns for o in self._lives.values() if o is not life), default=life.last_ns)
        return tuple(broken) if others_last - life.last_ns > SILENCE_NS else ()


def last_path(run: Run, rank: int) -> Frames:
    """Return the newest user frames known of a rank, from its calls, pulses, phases and batches."""
    found: tuple[int, int] = (-1, 0)
    for frame, column in (
        (run.calls, "start_ns"),
        (run.pulses, "time_ns"),
        (run.phases, "time_ns"),
        (run.batches, "time_ns"),
    ):
        known = frame[(frame["rank"] == rank) & frame["path"].notna()]
        if len(known):
            row = newest(known, column)
            found = max(found, (int(row[column]), int(row["path"])))
    return run.paths.get(found[1], ())


def _last_step(run: Run, rank: int) -> int:
    calls = run.calls[run.calls["rank"] == rank]
    pulses = run.pulses[run.pulses["rank"] == rank]
    return int(max(calls["step"].max() if len(calls) else 0, pulses["step"].max() if len(pulses) else 0))
