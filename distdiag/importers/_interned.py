"""Sizes and call sites of a dump's entries, equal ones once: they repeat thousands of times."""

import marshal
from collections.abc import Iterator, Sequence
from typing import Any

from distdiag import events
from distdiag.importers._dumps import Entry
from distdiag.importers._operations import Tensors, tensors, writable
from distdiag.importers._pickles import RefusedError
from distdiag.run.crashes import user_frames

MAX_MISSES = 32
"""A dump of another writer repeats frames without sharing them: looking for shared ones is then in vain."""
MAX_FRAMES = 64
"""Innermost frames of a call that are read."""
MAX_SIZE_BYTES = 64 << 20
"""Sizes of all entries together; a small pickle may repeat one huge list thousands of times."""
MAX_SITE_BYTES = 512 << 20
"""The same for stacks, of which each entry has one."""
TORCH_FILES = ("distributed_c10d.py", "c10d_logger.py", "typing_extensions.py", "_functional_collectives.py")
"""Found in the paths of dumps whose folders were cut off."""


class Sizes:
    """Reads the sizes of entries, equal ones once."""

    def __init__(self) -> None:
        self._known: dict[bytes, Tensors] = {}
        self._budget = MAX_SIZE_BYTES

    def of(self, entry: Entry) -> Tensors:
        """Return what an entry moves: the same object for equal sizes and types."""
        raw = (entry.input_sizes, entry.output_sizes, entry.input_dtypes, entry.output_dtypes)
        splits = entry.input_split_sizes, entry.output_split_sizes
        key = _content(raw if splits == (None, None) else (raw, splits))
        moved = self._known.get(key)
        if moved is None:
            moved = self._known[key] = tensors(*raw, splits)
        self._budget -= len(key)
        if self._budget < 0:
            raise RefusedError("the sizes of its tensors are beyond reason")
        return moved


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

    def records(self) -> Iterator[events.Path]:
        """Yield the records of all sites met."""
        return (events.Path(path=number, frames=list(path)) for path, number in self._paths.items() if number)

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


def _content(values: Any) -> bytes:
    """Return bytes that are equal for equal values."""
    try:
        return marshal.dumps(values, 2)
    except ValueError as error:
        raise RefusedError("its values are nested beyond reason") from error


def _frame_text(frame: Any) -> str | None:
    """Return ``file:line function`` of a frame of the user's, None for one of a library."""
    if not isinstance(frame, dict):
        return None
    file, line, name = frame.get("filename"), frame.get("line"), frame.get("name")
    if not isinstance(file, str) or not file or file.endswith(TORCH_FILES):
        return None
    text = f"{file[:1024]}:{line if isinstance(line, int) else 0} {name[:256] if isinstance(name, str) else '?'}"
    return next(iter(user_frames((writable(text),))), None)
