"""Where one call site leaves another: paths of user frames, outermost first.

In most real code the frame that calls torch is a shared wrapper; what tells two calls apart is the line at which
their paths fork.
"""

from collections.abc import Collection, Iterable
from pathlib import PurePath

Frames = tuple[str, ...]
"""User frames, each ``file:line function``, from the outermost to the innermost."""


def location(frame: str) -> str:
    """Return the ``file:line`` of a frame."""
    return frame.rsplit(" ", 1)[0]


def parts(frame: str) -> tuple[str, int, str]:
    """Return file, line and function of a frame; line 0 where it has none."""
    place, _, function = frame.rpartition(" ")
    file, _, line = place.rpartition(":")
    return file, int(line) if line.isdigit() else 0, function


def short(site: str) -> str:
    """Return a ``file:line`` without its folders, for sentences."""
    file, _, line = site.rpartition(":")
    return f"{PurePath(file).name}:{line}"


def fork_frame(path: Frames, other: Frames) -> str | None:
    """Return the first frame of ``path``, from outside, that is not in the same place of ``other``."""
    for position, frame in enumerate(path):
        if position >= len(other) or other[position] != frame:
            return frame
    return None


def fork_line(path: Frames, other: Frames, shared: Collection[str] = ()) -> str | None:
    """Return the ``file:line`` at which ``path`` leaves ``other``; without a fork, the line that is its own.

    Two paths without a common beginning run in two threads: that they differ says nothing.
    """
    together = bool(path) and bool(other) and path[0] == other[0]
    frame = fork_frame(path, other) if together else None
    return location(frame) if frame is not None else own_line(path, shared)


def own_line(path: Frames, shared: Collection[str]) -> str | None:
    """Return the ``file:line`` of the innermost frame that other sites do not share, else of the innermost."""
    for frame in reversed(path):
        if frame not in shared:
            return location(frame)
    return location(path[-1]) if path else None


def shared_frames(paths: Iterable[Frames]) -> set[str]:
    """Return the frames that different lines lead to: wrappers, not the functions that make several calls."""
    callers: dict[str, set[Frames]] = {}
    for path in set(paths):
        for position, frame in enumerate(path):
            callers.setdefault(frame, set()).add(path[:position])
    return {frame for frame, ways in callers.items() if len(ways) > 1 and len(_without_cut_ones(ways)) > 1}


def _without_cut_ones(ways: set[Frames]) -> set[Frames]:
    """Return ways to a frame without the ends of others: below many frames of libraries the rest is cut off."""
    return ways - {way[start:] for way in ways for start in range(1, len(way) + 1)}
