"""Which rank, and which attempt, a file is of: by its name, and by what it says of its groups."""

import re
from collections.abc import Iterable
from pathlib import Path

_SUFFIX = re.compile(r"\.(?:json|pkl|pickle|p|bin|dump|txt|log)$", re.IGNORECASE)
_NAMED_RANK = re.compile(r"(?<![a-z])(?<!local[_-])rank[_\-.]?(\d{1,8})(?!\d)", re.IGNORECASE)
_INTEGER = re.compile(r"\d+")
_ATTEMPT = re.compile(r"(?:attempt|restart|retry)[_\-.]?(\d{1,6})", re.IGNORECASE)
MAX_RANK = (1 << 18) - 1


def rank_in_name(path: Path) -> int | None:
    """Return the rank that a file's name tells: what follows ``rank``, else its last number."""
    stem = path.name
    while (shorter := _SUFFIX.sub("", stem)) != stem:
        stem = shorter
    named = _NAMED_RANK.findall(stem)
    numbers = named or _INTEGER.findall(stem)
    rank = int(numbers[-1][:12]) if numbers else None
    return rank if rank is not None and rank <= MAX_RANK else None


def told_rank_in_name(path: Path) -> int | None:
    """Return the rank that a file's name tells by what follows the word ``rank``."""
    named = _NAMED_RANK.findall(path.name)
    return int(named[-1]) if named and int(named[-1]) <= MAX_RANK else None


def rank_of(path: Path, groups: Iterable[tuple[int, ...]]) -> int | None:
    """Return the rank of a dump whose process is a member of all of ``groups``.

    A name that contradicts them holds a local rank, or the number of a host.
    """
    named = rank_in_name(path)
    members = [frozenset(group) for group in groups if group]
    possible = frozenset.intersection(*members) if members else frozenset()
    if named is not None and (not possible or named in possible):
        return named
    return next(iter(possible)) if len(possible) == 1 else named


def attempt_in_path(path: Path, root: Path) -> int | None:
    """Return the attempt that a file's name, or a folder between it and ``root``, tells."""
    parts = path.relative_to(root).parts if path.is_relative_to(root) else (path.name,)
    found = [match for part in parts for match in _ATTEMPT.findall(part)]
    return int(found[-1]) if found else None
