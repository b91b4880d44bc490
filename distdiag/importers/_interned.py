"""Sizes and call sites of a dump's entries, equal ones once: they repeat thousands of times."""

import functools
import itertools
import marshal
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from distdiag.importers._entries import Entry
from distdiag.importers._operations import Tensors, tensors, writable
from distdiag.importers._pickles import RefusedError
from distdiag.run.crashes import user_frames

MAX_MISSES = 32
"""A dump of another writer repeats frames without sharing them: looking for shared ones is then in vain."""
REMEMBERED = 4096
"""Sizes and call sites that are remembered from one dump to the next: the ranks of a job share most of them."""
MAX_REMEMBERED = 1 << 12
"""Bytes of one of them."""
MAX_FLAT = 1 << 16
"""Values in one of them; the same list may stand in a list many times, and many such in the next one."""
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
        raw = _sizes_of(entry)
        content = marshal.dumps(raw, 2) if all(map(flat, raw)) else b""
        moved = _tensors_in(content) if 0 < len(content) <= MAX_REMEMBERED else _tensors(raw)
        return self._known.setdefault(moved, moved)


_sizes_of = attrgetter(
    "input_sizes", "output_sizes", "input_dtypes", "output_dtypes", "input_split_sizes", "output_split_sizes"
)


def _tensors(raw: tuple[Any, ...]) -> Tensors:
    input_sizes, output_sizes, input_dtypes, output_dtypes, *splits = raw
    return tensors(input_sizes, output_sizes, input_dtypes, output_dtypes, (splits[0], splits[1]))


@functools.lru_cache(maxsize=REMEMBERED)
def _tensors_in(content: bytes) -> Tensors:
    return _tensors(marshal.loads(content))


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
        kept = list(frames)
        if not plain(kept):
            return self._number(_path(kept))
        content = marshal.dumps(kept, 2)
        self._spend(len(content))
        number = self._by_content.get(content)
        if number is None:
            path = _path_in(content) if len(content) <= MAX_REMEMBERED else _path(kept)
            number = self._by_content[content] = self._number(path)
        return number

    def _number(self, path: tuple[str, ...]) -> int:
        self._spend(sum(map(len, path)))
        return self._paths.setdefault(path, len(self._paths))

    def _spend(self, size: int) -> None:
        self._budget -= size
        if self._budget < 0:
            raise RefusedError("its stacks are beyond reason")


def flat(sizes: Any) -> bool:
    """Return whether sizes or types are a few numbers, texts, and lists of such in lists."""
    if not isinstance(sizes, list):
        return sizes is None or isinstance(sizes, str)
    inner = [size for size in sizes if isinstance(size, list)]
    if len(sizes) + sum(map(len, inner)) > MAX_FLAT:
        return False
    values = itertools.chain(itertools.chain.from_iterable(inner), (size for size in sizes if type(size) is not list))
    return not any(isinstance(value, list | tuple | dict) for value in values)


def plain(frames: Any) -> bool:
    """Return whether frames hold nothing that holds something itself: comparing them then takes no time."""
    return frames is None or (
        isinstance(frames, list)
        and len(frames) <= MAX_FLAT
        and all(isinstance(frame, dict) and _PLAIN.issuperset(map(type, frame.values())) for frame in frames)
    )


def _path(frames: Sequence[Any]) -> tuple[str, ...]:
    """Return the user's frames, outermost first."""
    return tuple(text for frame in frames if (text := _frame_text(frame)) is not None)[::-1]


@functools.lru_cache(maxsize=REMEMBERED)
def _path_in(content: bytes) -> tuple[str, ...]:
    return _path(marshal.loads(content))


def _frame_text(frame: Any) -> str | None:
    """Return ``file:line function`` of a frame of the user's, None for one of a library."""
    if not isinstance(frame, dict):
        return None
    file, line, name = frame.get("filename"), frame.get("line"), frame.get("name")
    if not isinstance(file, str) or not file or file.endswith(TORCH_FILES):
        return None
    text = f"{file[:1024]}:{line if isinstance(line, int) else 0} {name[:256] if isinstance(name, str) else '?'}"
    return next(iter(user_frames((writable(text),))), None)
