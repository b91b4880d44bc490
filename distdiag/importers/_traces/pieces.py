"""The text of a trace in pieces of whole events, without decoding it.

A string holds no bare quotation mark, so ``{"ph"`` after ``},`` is the beginning of an object: cutting there needs
no parser. Kineto writes an event on several lines, other tools a whole trace on one; both are cut alike.
"""

import contextlib
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

CHUNK_BYTES = 2 << 20
"""Decoded, it takes a few times as much; smaller ones are slower, larger ones only need more memory."""
_PACKED_BYTES = 256 << 10
_GZIP = b"\x1f\x8b"
_WITH_HEADER = 31
"""What zlib calls the gzip format with its largest window."""
MAX_HEAD_BYTES = 64 << 20
"""What a trace says before its events: the members of ten thousand groups are a tenth of it."""
MAX_PIECE_BYTES = 64 << 20
"""A piece grows to this where events cannot be told apart, as in a trace that is one event."""
_MOST_TRIES = 1000
_LOOK_BACK = 64
"""White space between two events."""
_LONGEST_EVENT = 64 << 10
"""Of those that pieces begin with."""
_TELLING = frozenset(("name", "ts"))
"""What an event has, and hardly an object in a list of its arguments."""
_NEAR_THE_END = 1 << 20
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BARE = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[")
_OPENING = re.compile(rb'\s*(\{\s*"(?:[^"\\]|\\.){0,100}")')
_ANY_OPENING = re.compile(rb'\}\s*,\s*(?=\{\s*")')


class CutOffError(Exception):
    """A packed file ends, or stops making sense, before its end."""


def is_packed(head: bytes) -> bool:
    """Return whether content is gzip."""
    return head.startswith(_GZIP)


def unpacked_head(head: bytes) -> bytes:
    """Return the beginning of a file's content; of damaged content, what can be read."""
    if not is_packed(head):
        return head
    try:
        return zlib.decompressobj(_WITH_HEADER).decompress(head, len(head))
    except zlib.error:
        return b""


def chunks(path: Path) -> Iterator[bytes]:
    """Yield the content of a file; raise ``CutOffError`` after the last good byte of a damaged one."""
    with path.open("rb") as file:
        packed = is_packed(file.read(len(_GZIP)))
        file.seek(0)
        if packed:
            yield from _unpacked(file)
        else:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk


def _unpacked(file: BinaryIO) -> Iterator[bytes]:
    stream = zlib.decompressobj(_WITH_HEADER)
    waiting = b""
    while waiting or (waiting := file.read(_PACKED_BYTES)):
        before = stream.copy()
        try:
            chunk = stream.decompress(waiting, CHUNK_BYTES)
        except zlib.error as error:
            yield _until_damage(before, waiting)
            raise CutOffError(f"its compression is damaged ({error})") from error
        if chunk:
            yield chunk
        waiting = stream.unconsumed_tail
        if stream.eof:
            waiting = stream.unused_data + file.read(len(_GZIP))
            if not is_packed(waiting):  # padding
                return
            stream = zlib.decompressobj(_WITH_HEADER)
    if not stream.eof:
        raise CutOffError("its compressed data ends early")


def _until_damage(stream: "zlib._Decompress", packed: bytes) -> bytes:
    """Return what comes before the place where unpacking fails; an error gives nothing of what came with it."""
    good: list[bytes] = []
    with contextlib.suppress(zlib.error):
        for place in range(len(packed)):
            good.append(stream.decompress(packed[place : place + 1]))
    return b"".join(good)


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
    """Return where the comma before the last whole event in ``buffer`` stands, and where that event begins."""
    end = len(buffer)
    for _ in range(_MOST_TRIES if opening else 0):
        begin = buffer.rfind(opening, 0, end)
        if begin <= 0:
            break
        before = buffer[max(0, begin - _LOOK_BACK) : begin].rstrip()
        if before.endswith(b",") and before[:-1].rstrip().endswith(b"}") and _is_event(buffer, begin):
            return buffer.rindex(b",", 0, begin), begin
        end = begin
    begin = max(0, len(buffer) - _NEAR_THE_END)
    others = [found.end() for found in _ANY_OPENING.finditer(buffer, begin)][-_MOST_TRIES:]
    event = next((place for place in reversed(others) if _is_event(buffer, place)), None)
    return None if event is None else (buffer.rindex(b",", 0, event), event)


def _is_event(buffer: bytes, begin: int) -> bool:
    try:
        found, _ = json.JSONDecoder().raw_decode(buffer[begin : begin + _LONGEST_EVENT].decode(errors="replace"))
    except (ValueError, RecursionError):
        return False
    return bool(_TELLING & found.keys())
