"""Sizes and call sites of a dump's entries, equal ones once: they repeat thousands of times."""

import marshal
from collections.abc import Sequence
from typing import Any

from distdiag.importers._dumps import Entry
from distdiag.importers._operations import Tensors, tensors, writable
from distdiag.importers._pickles import RefusedError
from distdiag.run.crashes import user_frames

MAX_MISSES = 32
"""A dump of another writer repeats frames without sharing them: looking for shared ones is then in vain."""
MAX_FRAMES = 64
"""Innermost frames of a call that are read."""
MAX_SITE_BYTES = 512 << 20
"""Stacks of all entries together, for the same reason; each entry has one."""
TORCH_FILES = ("distributed_c10d.py", "c10d_logger.py", "typing_extensions.py", "_functional_collectives.py")
"""Found in the paths of dumps whose folders were cut off."""
_PLAIN = frozenset({str, int, float, bool, type(None)})


class Sizes:
    """Reads the sizes of entries, equal ones once."""

    def __init__(self) -> None:
        self._known: dict[Tensors, Tensors] = {}

    def of(self, entry: Entry) -> Tensors:
        """Return what an entry moves: the same object for equal sizes and types."""
        moved = tensors(
            entry.input_sizes,
            entry.output_sizes,
            entry.input_dtypes,
            entry.output_dtypes,
            (entry.input_split_sizes, entry.output_split_sizes),
        )
        return self._known.setdefault(moved, moved)


def numbers_in(entry: Entry) -> int:
    """Return how many numbers the sizes of an entry hold, whether they make sense or not."""
    shapes = (entry.input_sizes, entry.output_sizes, [entry.input_split_sizes], [entry.output_split_sizes])
    return sum(len(each) for sizes in shapes if isinstance(sizes, list) for each in sizes if isinstance(each, list))


class Sites:
    """Call sites by number, equal ones once; 0 is the one without frames."""

    def __init__(self) -> None:
        self._paths: dict[tuple[str, ...], int] = {(): 0}
        self._by_identity: dict[tuple[int, ...], int] = {}
        self._hits = self._misses = 0
        self._by_content: dict[bytes, int] = {}
        self._budget = MAX_SITE_BYTES

    def number(self, frames: Any) -> int:
        """Return the number of a list of frames, innermost first."""
        if not isinstance(frames, list | tuple) or not frames:
            return 0
        kept = frames[:MAX_FRAMES]
        if self._misses > MAX_MISSES and not self._hits:
            return self._read(kept)
        # PyTorch writes a frame once however often it repeats, so the same objects are the same frames.
        identity = tuple(map(id, kept))
        number = self._by_identity.get(identity)
        if number is None:
            self._misses += 1
            number = self._by_identity[identity] = self._read(kept)
        else:
            self._hits += 1
        return number

    @property
    def paths(self) -> tuple[tuple[str, ...], ...]:
        """Return all sites met, outermost frame first; the first has number 1."""
        return tuple(self._paths)[1:]

    def _read(self, frames: Sequence[Any]) -> int:
        content = _content(frames)
        self._budget -= len(content)
        if self._budget < 0:
            raise RefusedError("its stacks are beyond reason")
        number = self._by_content.get(content)
        if number is None:
            known = tuple(text for frame in frames if (text := _frame_text(frame)) is not None)
            number = self._by_content[content] = self._paths.setdefault(known[::-1], len(self._paths))
        return number


def plain(frames: Any) -> bool:
    """Return whether frames hold nothing that holds something itself: comparing them then takes no time."""
    return frames is None or (
        isinstance(frames, list)
        and all(isinstance(frame, dict) and _PLAIN.issuperset(map(type, frame.values())) for frame in frames)
    )


def _content(frames: Sequence[Any]) -> bytes:
    """Return bytes that are equal for equal frames."""
    if not plain(list(frames)):
        frames = [_frame_text(frame) for frame in frames]
    return marshal.dumps(list(frames), 2)


def _frame_text(frame: Any) -> str | None:
    """Return ``file:line function`` of a frame of the user's, None for one of a library."""
    if not isinstance(frame, dict):
        return None
    file, line, name = frame.get("filename"), frame.get("line"), frame.get("name")
    if not isinstance(file, str) or not file or file.endswith(TORCH_FILES):
        return None
    text = f"{file[:1024]}:{line if isinstance(line, int) else 0} {name[:256] if isinstance(name, str) else '?'}"
    return next(iter(user_frames((writable(text),))), None)
