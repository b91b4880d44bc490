"""The text of a trace in pieces of whole events, without decoding it.

A string holds no bare quotation mark, so ``{"ph"`` after ``},`` is the beginning of an object: cutting there needs
no parser. Kineto writes an event on several lines, other tools a whole trace on one; both are cut alike.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from distdiag.importers._traces.chunks import CHUNK_BYTES, CutOffError, chunks

MAX_HEAD_BYTES = 64 << 20
"""What a trace says before its events: the members of ten thousand groups are a tenth of it."""
MAX_PIECE_BYTES = 64 << 20
"""A piece grows to this where events cannot be told apart, as in a trace that is one event."""
_MOST_TRIES = 1000
_LOOK_BACK = 64
"""White space between two events."""
_NEAR_THE_END = 1 << 20

_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BARE = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[")
_OPENING = re.compile(rb'\s*(\{\s*"(?:[^"\\]|\\.){0,100}")')
_ANY_OPENING = re.compile(rb'\}\s*,\s*(?=\{\s*")')


class NotATraceError(Exception):
    """A file holds no events that could be told apart."""


@dataclass(slots=True)
class Pieces:
    """Iterates over the events of a file as text; ``head`` and ``tail`` are there once it has ended."""

    path: Path
    head: bytes = b""
    """Everything up to the first event."""
    tail: bytes = b""
    """The last events and what follows them."""
    damage: str | None = None
    """Why the file could not be read to its end."""
    opening: bytes = b""
    """How an event begins."""

    def __iter__(self) -> Iterator[bytes]:
        """Yield lists of events as JSON; raise ``NotATraceError`` where there are none, ``OSError`` as reading."""
        content = self._content()
        buffer = self._after_head(content)
        enough = CHUNK_BYTES
        while (chunk := next(content, None)) is not None:
            if len(buffer) >= enough:
                self._see_opening(buffer)
                cut = last_boundary(buffer, self.opening)
                # Looking again at what had no boundary pays only when much has been added.
                enough = CHUNK_BYTES if cut is not None else 2 * len(buffer)
                if cut is not None:
                    yield b"".join((b"[", memoryview(buffer)[: cut[0]], b"]"))
                    buffer = buffer[cut[1] :]
            buffer = buffer + chunk if buffer else chunk.lstrip()
            if len(buffer) > MAX_PIECE_BYTES:
                raise NotATraceError(f"{MAX_PIECE_BYTES >> 20} MiB of it hold no end of an event")
        self.tail = buffer

    def _content(self) -> Iterator[bytes]:
        try:
            yield from chunks(self.path)
        except CutOffError as error:
            self.damage = str(error)

    def _after_head(self, content: Iterator[bytes]) -> bytes:
        buffer = b""
        for chunk in content:
            buffer = buffer + chunk if buffer else chunk.lstrip()
            start = _BARE.match(buffer) or _EVENTS.search(buffer)
            if start is not None:
                self.head = buffer[: start.end()]
                return buffer[start.end() :]
            if len(buffer) > MAX_HEAD_BYTES:
                raise NotATraceError(f"its first {MAX_HEAD_BYTES >> 20} MiB hold no event")
        raise NotATraceError(self.damage or "it ends before its first event")

    def _see_opening(self, buffer: bytes) -> None:
        if not self.opening and (found := _OPENING.match(buffer)) is not None:
            self.opening = found.group(1)


def last_boundary(buffer: bytes, opening: bytes) -> tuple[int, int] | None:
    """Return where the comma before the last event in ``buffer`` stands, and where that event begins."""
    end = len(buffer)
    for _ in range(_MOST_TRIES if opening else 0):
        begin = buffer.rfind(opening, 0, end)
        if begin <= 0:
            break
        before = buffer[max(0, begin - _LOOK_BACK) : begin].rstrip()
        if before.endswith(b",") and before[:-1].rstrip().endswith(b"}"):
            return buffer.rindex(b",", 0, begin), begin
        end = begin
    begin = max(0, len(buffer) - _NEAR_THE_END)
    others = list(_ANY_OPENING.finditer(buffer, begin))
    return (buffer.rindex(b",", 0, others[-1].end()), others[-1].end()) if others else None
