"""How ranks and places stand in sentences: one wording for findings, alarms, imported files and reports."""

from collections.abc import Iterable

from distdiag import events


def fold(ranks: Iterable[int]) -> str:
    """Return ranks as ``0-2,5``."""
    return events.folded(sorted(set(ranks)))


def named(ranks: Iterable[int]) -> str:
    """Return ``rank 3`` or ``ranks 0-2,5``; ``no rank`` when there is none."""
    ordered = sorted(set(ranks))
    if not ordered:
        return "no rank"
    return f"rank {ordered[0]}" if len(ordered) == 1 else f"ranks {fold(ordered)}"


def basename(place: str) -> str:
    """Return ``/long/path/train.py:12 main`` as ``train.py:12 main``."""
    path, colon, rest = place.partition(":")
    return f"{path.rsplit('/', 1)[-1]}{colon}{rest}"
