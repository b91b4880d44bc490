"""How ranks died, as values; several that died alike are one death."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from signal import SIGKILL
from typing import Any

from distdiag.analyzers._wording import named, verb
from distdiag.analyzers.investigation.paths import Frames, location
from distdiag.run import user_frames

GATHERED = re.compile(r"ranks:\s*dict_keys\(\[(?P<ranks>[\d, ]+)\]\)")
"""What a distributed checkpoint says of a part that failed on some ranks, before their tracebacks."""
TRACEBACK = re.compile(r"^Traceback \(most recent call last\): \(RANK \d+\)$", re.MULTILINE)
FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$', re.MULTILINE)
PARAMETERS = re.compile(
    r"Rank (?P<rank>\d+) has (?P<mine>\d+) params, while rank (?P<other>\d+) has inconsistent (?P<its>\d+)"
)
"""What DDP says of models with different numbers of parameters: each rank of itself and of one other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accused:
    """Who an error is about, and what it says of them."""

    ranks: tuple[int, ...]
    what: str
    frames: Frames = ()
    """Where it was raised there, as far as the error tells; empty where it does not."""
    reason: str = ""
    """Why it is them, where the errors have to be compared for that."""


def accused(said: Mapping[int, str]) -> Accused | None:
    """Return whom the errors of some ranks, by rank, are about; None where they name nobody, or all who raised."""
    return _gathered(said) or _outvoted(said)


def _gathered(said: Mapping[int, str]) -> Accused | None:
    text = next(iter(said.values()))
    found = GATHERED.search(text)
    if found is None:
        return None
    ranks = tuple(sorted({int(rank) for rank in found["ranks"].split(",")}))
    if len(ranks) >= len(said):
        return None
    trace = TRACEBACK.split(text)[1:]
    if not trace:
        return Accused(ranks=ranks, what=text)
    frames = [f"{each['file']}:{each['line']} {each['function']}" for each in FRAME.finditer(trace[0])]
    own = user_frames(frame for frame in frames if "-packages/" not in frame)
    lines = [line for line in trace[0].splitlines() if line and not line.startswith(" ")]
    return Accused(ranks=ranks, what=lines[-1] if lines else text, frames=own)


def _outvoted(said: Mapping[int, str]) -> Accused | None:
    counts: dict[int, int] = {}
    for text in said.values():
        found = PARAMETERS.search(text)
        if found is None:
            return None
        counts |= {int(found["rank"]): int(found["mine"]), int(found["other"]): int(found["its"])}
    (usual, ranks), *_ = Counter(counts.values()).most_common(1)
    odd = tuple(sorted(rank for rank, count in counts.items() if count != usual))
    if 2 * ranks <= len(counts) or not odd:
        return None
    return Accused(
        ranks=odd,
        what=said.get(odd[0], next(iter(said.values()))),
        reason=f"{named(odd)} {verb(odd, 'has', 'have')} {counts[odd[0]]} parameters, {ranks} ranks have {usual}",
    )


OUT_OF_MEMORY = "out-of-memory"
KILLED = "killed"
NO_SIGNAL = "its log ends without an exit"
"""What is said of a process that ended without a word, where nothing tells of a signal."""
ENDED = "end"
"""Fault of an imported text: a process that no rank is told of ended, as its launcher saw."""


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
    too: tuple[str, ...] = ()
    """What other ranks died of that is not known to come of this."""
    unnamed: str = ""
    """What a launcher calls it where no rank is told: ``local rank 3, process 812917``."""

    @property
    def site(self) -> str | None:
        """Return the ``file:line`` of the innermost user frame."""
        return location(self.frames[-1]) if self.frames else None


def of_nobody(fault: Any) -> Death:
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


def together(deaths: Iterable[Death]) -> Death:
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
