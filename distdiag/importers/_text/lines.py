"""Lines of a text file, read in bounded memory whatever the file holds."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CHUNK_BYTES = 1 << 20
MAX_LINE_BYTES = 64 << 10
"""The longest messages of c10d have a few KiB; the rest of a longer line is left out."""
HEAD_BYTES = 64 << 20
TAIL_BYTES = 192 << 20
"""Beyond head and tail the middle of a file is left out: what ends a job stands at its end."""


@dataclass(frozen=True, slots=True)
class RawLine:
    """One line as it stands in a file."""

    number: int
    data: bytes


def raw_lines(path: Path) -> Iterator[RawLine]:
    """Yield the lines of a file; NULs are left out, and so is what exceeds ``MAX_LINE_BYTES`` of a line.

    After a gap in a very large file the numbers go on counting lines that were read.
    """
    carry, overlong, number = b"", False, 0
    for chunk in _chunks(path):
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            number += 1
            yield RawLine(number, _bounded(carry, b"" if overlong else piece))
            carry, overlong = b"", False
        if rest and not overlong:
            carry = _bounded(carry, rest)
            overlong = len(carry) >= MAX_LINE_BYTES
    if carry:
        yield RawLine(number + 1, carry)


def left_out_bytes(path: Path) -> int:
    """Return how many bytes in the middle of a file are not read."""
    return max(0, path.stat().st_size - HEAD_BYTES - TAIL_BYTES)


def _bounded(carry: bytes, piece: bytes) -> bytes:
    # A log that was truncated under its writer begins with a hole, which reads as NULs.
    return carry + piece.translate(None, b"\0")[: MAX_LINE_BYTES - len(carry)]


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        skip = max(0, os.fstat(file.fileno()).st_size - HEAD_BYTES - TAIL_BYTES)
        position = 0
        while chunk := file.read(CHUNK_BYTES):
            position += len(chunk)
            yield chunk
            if skip and position >= HEAD_BYTES:
                position = file.seek(position + skip)
                skip = 0
