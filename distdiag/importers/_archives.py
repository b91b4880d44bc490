"""Archives among logs: what they hold becomes files of a folder, in bounded room and never outside of it."""

import bz2
import gzip
import io
import lzma
import os
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Protocol

MAX_BYTES = 4 << 30
"""Unpacked, of all archives together: text packs ten to one, and more than that is no log somebody passed on."""
MAX_MEMBERS = 50_000
CHUNK_BYTES = 1 << 20
_BLOCK = 512
"""Bytes of a tar file's header."""
_NOT_LOGS = frozenset({".pt", ".pth", ".ckpt", ".safetensors", ".npy", ".npz", ".jpg", ".jpeg", ".png", ".mp4", ".so"})
"""Members that may be large and tell nothing here."""
_ZIP, _ZSTD = b"PK\x03\x04", b"\x28\xb5\x2f\xfd"
_OPENERS: Mapping[bytes, type[gzip.GzipFile] | type[lzma.LZMAFile] | type[bz2.BZ2File]] = {
    b"\x1f\x8b": gzip.GzipFile,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"BZh": bz2.BZ2File,
}
_SUFFIXES = (".gz", ".xz", ".bz2", ".zst", ".zstd")


class _Stream(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class ArchiveError(Exception):
    """An archive that is not unpacked, with the reason in words."""


def is_archive(file: Path, head: bytes) -> bool:
    """Return whether a file is packed; zip files by their name too, for checkpoints are of that form."""
    if head.startswith(_ZIP):
        return file.suffix.lower() == ".zip"
    return head.startswith((*_OPENERS, _ZSTD)) or _is_tar(head)


def unpack(file: Path, head: bytes, folder: Path, room: int) -> tuple[Path, int]:
    """Write what a file holds into ``folder``, at most ``room`` bytes; return where that is, and how many those are.

    A packed file becomes a file, so that those of one folder come into one again; what holds several a folder.

    Raises ``ArchiveError`` where it is damaged, too large, or of a form that cannot be unpacked here.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if head.startswith(_ZIP):
            several = folder / file.stem
            return several, _members(_of_zip(file), several, room)
        with _opened(file, head) as stream:
            begins = stream.read(_BLOCK)
            rest = _Joined(begins, stream)
            if _is_tar(begins):
                several = folder / file.name.partition(".")[0]
                return several, _members(_of_tar(rest), several, room)
            inside = folder / _unpacked_name(file)
            written = _write(rest, inside, room)
            _date(inside, file.stat().st_mtime)
            return inside, written
    except (OSError, EOFError, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, ValueError) as error:
        raise ArchiveError(f"{file.name} cannot be unpacked: {error}") from error


class _Joined(io.RawIOBase):
    """What was read of a stream already, and the rest of it."""

    def __init__(self, begins: bytes, stream: _Stream) -> None:
        super().__init__()
        self._begins, self._stream = begins, stream

    def read(self, size: int = -1) -> bytes:
        if not self._begins:
            return self._stream.read(size)
        taken = self._begins if size < 0 else self._begins[:size]
        self._begins = self._begins[len(taken) :]
        return taken + (self._stream.read() if size < 0 else b"")


def _is_tar(head: bytes) -> bool:
    return head[257:262] == b"ustar"


def _unpacked_name(file: Path) -> str:
    return file.stem if file.suffix.lower() in _SUFFIXES else file.name


@contextmanager
def _opened(file: Path, head: bytes) -> Iterator[_Stream]:
    opener = next((opener for magic, opener in _OPENERS.items() if head.startswith(magic)), None)
    if opener is not None:
        with opener(file) as stream:
            yield stream
    elif head.startswith(_ZSTD):
        with _unzstd(file) as stream:
            yield stream
    else:
        with file.open("rb") as stream:
            yield stream


@contextmanager
def _unzstd(file: Path) -> Iterator[_Stream]:
    """Open a file that zstd packed, by the program of that name: Python before 3.14 has no module for it."""
    program = shutil.which("zstd")
    if program is None:
        raise ArchiveError(f"{file.name} is packed with zstd, which is not installed here: unpack it first")
    with subprocess.Popen(
        [program, "-dcq", "--", str(file)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield process.stdout or io.BytesIO()
        finally:
            process.kill()


def _of_tar(stream: _Joined) -> Iterator[tuple[str, float, _Stream]]:
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            inside = archive.extractfile(member) if member.isfile() else None
            if inside is not None:
                yield member.name, member.mtime, inside


def _of_zip(file: Path) -> Iterator[tuple[str, float, _Stream]]:
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if not member.is_dir():
                with archive.open(member) as inside:
                    yield member.filename, file.stat().st_mtime, inside


def _members(members: Iterator[tuple[str, float, _Stream]], folder: Path, room: int) -> int:
    written = 0
    for count, (name, modified, inside) in enumerate(members):
        if count >= MAX_MEMBERS:
            raise ArchiveError(f"more than {MAX_MEMBERS} files are in {name}")
        parts = [part for part in PurePosixPath(name).parts if part not in ("..", "/", ".")]
        if not parts or PurePosixPath(name).suffix.lower() in _NOT_LOGS:
            continue
        target = folder.joinpath(*parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        written += _write(inside, target, room - written)
        _date(target, modified)
    return written


def _write(stream: _Stream, target: Path, room: int) -> int:
    written = 0
    with target.open("wb") as out:
        while chunk := stream.read(CHUNK_BYTES):
            written += len(chunk)
            if written > room:
                raise ArchiveError(f"archives hold more than {MAX_BYTES >> 30} GiB: unpack {target.name} yourself")
            out.write(chunk)
    return written


def _date(file: Path, modified: float) -> None:
    """Let a file be as old as it was: logs that name no zone are placed by it."""
    os.utime(file, (modified, modified))
