"""Lines of a text file, read in bounded memory whatever the file holds."""

import codecs
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from distdiag.importers._text import collectors

CHUNK_BYTES = 1 << 20
MAX_LINE_BYTES = 64 << 10
"""The longest messages of c10d have a few KiB; the rest of a longer line is left out."""
HEAD_BYTES = 64 << 20
TAIL_BYTES = 192 << 20
"""Beyond head and tail the middle of a file is left out: what ends a job stands at its end."""


COLLECTOR_HEAD_BYTES = 64 << 10
WIDE_SAMPLE = 4096
LEAST_WIDE = 16


@dataclass(frozen=True, slots=True)
class RawLine:
    """One line as it stands in a file."""

    number: int
    data: bytes


def wide_encoding(head: bytes) -> str | None:
    """Return the encoding of text whose characters have two bytes each: what PowerShell redirects is of that kind."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    sample = head[:WIDE_SAMPLE]
    if len(sample) < LEAST_WIDE:
        return None
    even, odd = sample[0::2].count(0), sample[1::2].count(0)
    if odd * 10 > len(sample) * 4 and even * 10 < len(sample):
        return "utf-16-le"
    return "utf-16-be" if even * 10 > len(sample) * 4 and odd * 10 < len(sample) else None


def raw_lines(path: Path) -> Iterator[RawLine]:
    """Yield the lines of a file as ``plain_lines`` does, taken out of what a collector has wrapped them in."""
    with path.open("rb") as file:
        head = file.read(COLLECTOR_HEAD_BYTES)
        if collectors.is_document(head) or collectors.is_table(head):
            texts = collectors.unwrapped(head + file.read(collectors.MAX_DOCUMENT_BYTES))
            for number, text in enumerate(texts, start=1):
                yield RawLine(number, _bounded(b"", text))
            return
    if not collectors.is_lines(head):
        yield from plain_lines(path)
        return
    wrapped = (text for raw in plain_lines(path) for text in collectors.unwrapped_line(raw.data))
    for number, text in enumerate(wrapped, start=1):
        yield RawLine(number, text)


def plain_lines(path: Path) -> Iterator[RawLine]:
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
        encoding = wide_encoding(file.read(WIDE_SAMPLE))
        file.seek(0)
        if encoding is not None:
            decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
            for _ in range((HEAD_BYTES + TAIL_BYTES) // CHUNK_BYTES):
                if not (chunk := file.read(CHUNK_BYTES)):
                    break
                yield decoder.decode(chunk).encode()
            return
        skip = max(0, os.fstat(file.fileno()).st_size - HEAD_BYTES - TAIL_BYTES)
        position = 0
        while chunk := file.read(CHUNK_BYTES):
            position += len(chunk)
            yield chunk
            if skip and position >= HEAD_BYTES:
                position = file.seek(position + skip)
                skip = 0
