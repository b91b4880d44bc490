"""Which rank, and which attempt, a file is of: by its name, and by what it says of its groups."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

_SUFFIX = re.compile(r"\.(?:json|pkl|pickle|p|bin|dump|txt|log)$", re.IGNORECASE)
_NAMED_RANK = re.compile(r"(?<![a-z])(?<!local[_-])rank[_\-.]?(\d{1,8})(?!\d)", re.IGNORECASE)
_INTEGER = re.compile(r"\d+")
_HASHED = re.compile(r"(?<![a-z\d])(?=\d*[a-f])(?=[a-f]*\d)[a-f\d]{5,}(?![a-z\d])", re.IGNORECASE)
"""What bears letters and digits at random tells no rank, where names have nothing else in common."""
_ATTEMPT = re.compile(r"(?:attempt|restart|retry)[_\-.]?(\d{1,6})", re.IGNORECASE)
MAX_RANK = (1 << 18) - 1
LIKELY_RANKS = 10_000
"""A larger number is rather a time, where names have another that tells files apart."""


def rank_in_name(path: Path) -> int | None:
    """Return the rank that a file's name tells: what follows ``rank``, else its last number."""
    named = _NAMED_RANK.findall(path.name)
    numbers = named or _INTEGER.findall(_stem(path.name))
    rank = int(numbers[-1][:12]) if numbers else None
    return rank if rank is not None and rank <= MAX_RANK else None


def ranks_in_names(files: Sequence[Path]) -> Mapping[Path, int]:
    """Return the ranks that the names of dumps tell, those of their folders where all files bear one name.

    What follows ``rank`` tells it; else the number in which files of one form differ, the last of several.
    """
    ranks = {file: rank for file in files if (rank := _told(file)) is not None}
    forms: dict[str, list[tuple[Path, list[int]]]] = {}
    for file in files:
        if file not in ranks:
            written = _ATTEMPT.sub("", f"{file.parent}/{_stem(file.name)}")
            numbers = [int(each[:12]) for each in _INTEGER.findall(written)]
            forms.setdefault(_INTEGER.sub("#", written), []).append((file, numbers))
    for alike in forms.values():
        column = _telling(list(zip(*(numbers for _, numbers in alike), strict=True)))
        for file, numbers in alike:
            if len(forms) > 1 and _HASHED.search(_stem(file.name)):
                continue
            rank = numbers[column] if column is not None else rank_in_name(file)
            if rank is not None and rank <= MAX_RANK:
                ranks[file] = rank
    return ranks


def _told(file: Path) -> int | None:
    """Return the rank that a name tells by the word; a folder's where the name has no number at all."""
    told = told_rank_in_name(file)
    return told_rank_in_name(file.parent) if told is None and not _INTEGER.search(_stem(file.name)) else told


def _telling(columns: Sequence[tuple[int, ...]]) -> int | None:
    """Return which of the numbers in names of one form tells the files apart, None without one."""
    apart = [n for n, column in enumerate(columns) if len(set(column)) == len(column) > 1 and max(column) <= MAX_RANK]
    likely = [number for number in apart if max(columns[number]) < LIKELY_RANKS]
    return max(likely or apart, default=None)


def _stem(name: str) -> str:
    """Return a name without what says its format."""
    while (shorter := _SUFFIX.sub("", name)) != name:
        name = shorter
    return name


def told_rank_in_name(path: Path) -> int | None:
    """Return the rank that a file's name tells by what follows the word ``rank``."""
    named = _NAMED_RANK.findall(path.name)
    return int(named[-1]) if named and int(named[-1]) <= MAX_RANK else None


def rank_of(named: int | None, groups: Iterable[tuple[int, ...]]) -> int | None:
    """Return the rank of a dump whose process is a member of all of ``groups``, and whose name tells ``named``.

    A name that contradicts them holds a local rank, or the number of a host.
    """
    members = [frozenset(group) for group in groups if group]
    possible = frozenset.intersection(*members) if members else frozenset()
    if named is not None and (not possible or named in possible):
        return named
    return next(iter(possible)) if len(possible) == 1 else None


def attempt_in_path(path: Path, root: Path) -> int | None:
    """Return the attempt that a file's name, or a folder between it and ``root``, tells."""
    parts = path.relative_to(root).parts if path.is_relative_to(root) else (path.name,)
    found = [match for part in parts for match in _ATTEMPT.findall(part)]
    return int(found[-1]) if found else None
