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
    """Return the frames that different call sites have in common: wrappers and main functions."""
    seen: set[str] = set()
    shared: set[str] = set()
    for path in set(paths):
        shared |= seen & set(path)
        seen |= set(path)
    return shared
