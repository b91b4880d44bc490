"""Reads what ``torch.save`` writes, a zip archive around a pickle, without torch and without running the pickle."""

import io
import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

AT_ONCE_BYTES = 1 << 20
SMALL_BYTES = 1 << 16
"""A record up to this size is hashed with its archive's frame; a larger one only through its own CRC."""
LOCAL_HEADER_BYTES = 30
ZIP_MAGIC = b"PK\x03\x04"
BROKEN = (
    zipfile.BadZipFile,
    RuntimeError,  # an unknown way of packing, an encrypted record
    struct.error,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OverflowError,
    ValueError,
    OSError,
)
"""What ``zipfile`` raises on an archive that is damaged."""


class BrokenError(ValueError):
    """Not a whole archive of ``torch.save``."""


class Window(io.RawIOBase):
    """A range of bytes of an open file, as a file of its own that may be read at any place."""

    def __init__(self, descriptor: int, offset: int, length: int) -> None:
        super().__init__()
        self._descriptor, self._offset, self.length = descriptor, offset, length
        self._at = 0

    def readable(self) -> bool:
        """Return True: that is what it is for."""
        return True

    def seekable(self) -> bool:
        """Return True: archives are read from their end."""
        return True

    def tell(self) -> int:
        """Return where in the range the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move within the range."""
        at = offset + (0, self._at, self.length)[whence]
        if at < 0:
            raise ValueError("a place before the begin")
        self._at = at
        return at

    def readinto(self, buffer: Any, /) -> int:
        """Read what is there, up to the end of the range."""
        data = self.at(self._at, len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def at(self, start: int, size: int) -> bytes:
        """Return bytes of the range; fewer where it or the file ends."""
        size = min(size, self.length - start)
        return os.pread(self._descriptor, size, self._offset + start) if size > 0 else b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """The table of contents of an archive."""

    entries: tuple[zipfile.ZipInfo, ...]
    prefix: str
    checked: bool
    """Whether ``torch.save`` wrote checksums; it does unless told not to."""

    def record(self, name: str) -> zipfile.ZipInfo | None:
        """Return the entry of a record: ``data.pkl``, ``data/0`` …"""
        return next((each for each in self.entries if each.filename == self.prefix + name), None)


def open_archive(window: Window) -> tuple[Archive, zipfile.ZipFile]:
    """Return the archive in a range of bytes; raise ``BrokenError`` where there is none."""
    try:
        packed = zipfile.ZipFile(io.BufferedReader(window))
    except BROKEN as error:
        raise BrokenError(str(error) or type(error).__name__) from error
    entries = tuple(packed.infolist())
    first = next((each.filename for each in entries if each.filename.rpartition("/")[2] == "data.pkl"), None)
    if first is None:
        raise BrokenError("the archive has no data.pkl")
    checked = any(each.CRC for each in entries)
    return Archive(entries=entries, prefix=first.removesuffix("data.pkl"), checked=checked), packed


def payload_start(window: Window, entry: zipfile.ZipInfo) -> int:
    """Return where in the window the bytes of a record begin."""
    header = window.at(entry.header_offset, LOCAL_HEADER_BYTES)
    if len(header) < LOCAL_HEADER_BYTES or not header.startswith(ZIP_MAGIC):
        raise BrokenError(f"no record begins at byte {entry.header_offset}")
    name, extra = struct.unpack_from("<HH", header, 26)
    return entry.header_offset + LOCAL_HEADER_BYTES + int(name) + int(extra)


def broken_records(window: Window, archive: Archive, packed: zipfile.ZipFile) -> Iterator[tuple[str, int, int, str]]:
    """Yield name, begin, end and what is wrong of each record whose bytes do not fit its checksum."""
    for entry in archive.entries:
        start = entry.header_offset
        try:
            start = payload_start(window, entry)
            if archive.checked and entry.compress_type == zipfile.ZIP_STORED:
                if _digest(window, start, start + entry.file_size, 0) != entry.CRC:
                    raise BrokenError("Bad CRC-32")
            elif archive.checked:
                with packed.open(entry) as record:
                    while record.read(AT_ONCE_BYTES):
                        pass
            elif len(window.at(start, entry.file_size)) < entry.file_size:
                raise BrokenError("the record is cut off")
        except BROKEN as error:
            name = entry.filename.removeprefix(archive.prefix)
            yield name, start, start + entry.file_size, str(error) or type(error).__name__


def frame_digest(window: Window, entries: Sequence[zipfile.ZipInfo] = ()) -> int:
    """Return a CRC-32 of a range of bytes without the contents of large records.

    Their own CRCs are part of the archive's table of contents, and so of this: it stands for every byte, and takes
    a few small reads. Raises ``BrokenError`` and ``OSError``.
    """
    digest, at = 0, 0
    for entry in sorted(entries, key=lambda each: each.header_offset):
        if entry.file_size > SMALL_BYTES:
            start = payload_start(window, entry)
            digest = _digest(window, at, start, digest)
            at = start + entry.compress_size
    return _digest(window, at, window.length, digest)


def _digest(window: Window, start: int, end: int, digest: int) -> int:
    while start < end:
        data = window.at(start, min(AT_ONCE_BYTES, end - start))
        if not data:
            raise BrokenError(f"the file ends at byte {start}")
        digest = zlib.crc32(data, digest)
        start += len(data)
    return digest
