"""Which rank died of something of its own, and which only of what others did to it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from distdiag.analyzers.investigation.deaths import KILLED, OUT_OF_MEMORY, Death, of_nobody, together
from distdiag.analyzers.investigation.lives import CONNECTION, NEVER_NS, OWN_FAULT, TIMEOUT, End, Life
from distdiag.analyzers.investigation.memory import is_memory_error
from distdiag.analyzers.investigation.paths import Frames
from distdiag.analyzers.investigation.rows import by_rank, records, whole
from distdiag.analyzers.investigation.vanished import Vanished
from distdiag.events import UNSIGNED
from distdiag.run import Run

INTERPRETER = "interpreter"
"""Place of the record of an exit that unwound the stack: ``sys.exit``, or the end of the script."""


class OwnErrors:
    """The exceptions, and exits with a code, that ended the ranks of a run."""

    def __init__(self, run: Run) -> None:
        calls, faults = run.calls, run.faults
        self._left = {int(fault.rank): fault for fault in records(faults[faults["where"] == INTERPRETER])}
        self._uncaught: dict[int, list[Any]] = {}
        for fault in records(faults[faults["where"] == "uncaught"]):
            self._uncaught.setdefault(int(fault.rank), []).append(fault)
        unfinished = calls[calls["end_ns"].isna() & ~calls["captured"]]
        self._unfinished = frozenset(int(rank) for rank in unfinished["rank"].unique())
        self._handling = calls[calls["handling"].notna()]
        during_failed = self._handling[self._handling["failed"]].drop_duplicates("rank")
        ran_out = faults[(faults["fault"] == OUT_OF_MEMORY) & (faults["where"] == "raised")]
        lasts = by_rank(calls.groupby("rank")["start_ns"].max())
        self._ran_out = {
            int(fault.rank): fault for fault in records(ran_out) if fault.time_ns > lasts.get(int(fault.rank), 0)
        }
        """Memory errors after the last call of a rank: whatever comes up then comes of them."""
        self._handled = dict(zip(during_failed["rank"].tolist(), during_failed["handling"].tolist(), strict=True))

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
                memory_error = self._ran_out.get(life.rank)
                if memory_error is not None and memory_error.type not in error:
                    return _of_memory(memory_error, life, came_up_as=error)
                root = _behind(fault, error)
                told = root if root.partition(": ")[2].strip() else error
                memory = fault.fault == OUT_OF_MEMORY or any(map(is_memory_error, chain))
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
        memory = error is not None and is_memory_error(error)
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


def _of_memory(fault: Any, life: Life, *, came_up_as: str) -> Death:
    return Death(
        ranks=(life.rank,),
        time_ns=int(fault.time_ns),
        cause=OUT_OF_MEMORY,
        what=f"{fault.type}: {fault.message}",
        came_up_as=came_up_as,
        frames=tuple(fault.frames),
        step=int(fault.step),
    )


def is_consequence(text: str) -> bool:
    """Return whether an error says that a wait gave up or the other side went away."""
    return bool(TIMEOUT.search(text) or CONNECTION.search(text)) and not OWN_FAULT.search(text)


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
            return (origin,) if origin else tuple(fault.frames)
    return tuple(fault.frames)


def _type_of(text: str) -> str:
    return text.partition(":")[0].rpartition(".")[2]


def deaths_of(run: Run, lives: Mapping[int, Life], blocked_since: Mapping[int, int]) -> tuple[Death, ...]:
    """Return the deaths that nobody else caused, the first one first.

    ``blocked_since`` tells since when a rank was blocked in a call it never came out of.
    """
    errors, vanished = OwnErrors(run), Vanished(run, lives, blocked_since)
    each = (errors.raised(life) or vanished.ended(life) or errors.left(life) for life in lives.values())
    single = [death for death in each if death is not None]
    single += [of_nobody(fault) for fault in records(run.faults[run.faults["where"] == UNSIGNED])]
    # A log that was cut ends as that of a killed process does: its rank is named if no other can be.
    cut = set(run.quality.cut_ranks)
    sure = [death for death in single if not cut.intersection(death.ranks) or death.cause != KILLED]
    single = sure or single
    timely = _timely(run, single, vanished.timeouts)
    alike: dict[tuple[str, str, str | None], list[Death]] = {}
    for death in timely:
        alike.setdefault((death.cause, _without_numbers(death.what), death.site), []).append(death)
    return tuple(sorted(map(together, alike.values()), key=lambda death: (death.time_ns, death.ranks)))


def _timely(run: Run, deaths: Sequence[Death], timeouts: Mapping[int, int]) -> list[Death]:
    """Return the deaths of before any rank whose clock compares gave up waiting; those of nobody are of any clock."""
    clock = {rank: number for number, island in enumerate(run.islands) for rank in island}
    first: dict[int | None, int] = {}
    for rank, at in timeouts.items():
        for each in {clock.get(rank), None}:
            first[each] = min(at, first.get(each, at))
    return [d for d in deaths if d.time_ns <= first.get(clock.get(d.ranks[0]) if d.ranks else None, NEVER_NS)]


def _without_numbers(text: str) -> str:
    # Messages name ranks, addresses and sizes that differ where the error is the same.
    return re.sub(r"0x[0-9a-f]+|\d+", "#", text)
