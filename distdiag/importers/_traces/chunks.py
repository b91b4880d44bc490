"""The bytes of a file, unpacked where it is packed; what is whole of a damaged one comes before the complaint."""

import contextlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

CHUNK_BYTES = 2 << 20
"""Decoded, it takes a few times as much; smaller ones are slower, larger ones only need more memory."""
_PACKED_BYTES = 256 << 10
_GZIP = b"\x1f\x8b"
_WITH_HEADER = 31
"""What zlib calls the gzip format with its largest window."""


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
