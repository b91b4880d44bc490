"""Errors that many ranks raise together and that say which of them they are about.

Libraries that check something on all ranks, or gather how it went everywhere, raise on everybody. Who they name is the
one to look at; that all of them raised says nothing.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from distdiag.analyzers._wording import named, verb
from distdiag.analyzers.investigation.paths import Frames

GATHERED = re.compile(r"ranks:\s*dict_keys\(\[(?P<ranks>[\d, ]+)\]\)")
"""What a distributed checkpoint says of a part that failed on some ranks, before their tracebacks."""
TRACEBACK = re.compile(r"^Traceback \(most recent call last\): \(RANK \d+\)$", re.MULTILINE)
FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$', re.MULTILINE)
LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3")
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
    own = tuple(frame for frame in frames if not any(part in frame for part in LIBRARIES))
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
