"""The hash records that a save leaves inside a checkpoint: one small file beside each shard, one for the metadata.

They lie in a folder of the checkpoint, ``.distdiag``, so that they go wherever it is copied; the same digests stand
in the log of the rank that saved. Written in the training process, read by ``verify``.
"""

import contextlib
import os
import re
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

FOLDER = ".distdiag"
METADATA = ".metadata"
ENDING = ".json"
SCHEMA = "distdiag.checkpoint/1"
VERIFIED = "verified"
MAX_RECORD_BYTES = 64 << 20
_PLAIN_NAME = re.compile(r"[\w.\-]{1,200}")


class ItemHash(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A range of bytes of a shard and its digest; None where its contents have no checksum that could be read."""

    offset: int
    length: int
    digest: int | None


class FileRecord(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What one save wrote into one file."""

    schema: str = SCHEMA
    file: str
    size_bytes: int
    digest: int | None = None
    """CRC-32 over the digests of the items, or of the whole file where it has none."""
    items: list[ItemHash] = []
    rank: int | None = None
    world_size: int | None = None
    step: int | None = None
    save_id: str | None = None
    wall_ns: int | None = None


class Stamp(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The outcome of the newest verification of a checkpoint, for who reads the run's logs later."""

    schema: str = SCHEMA
    outcome: str
    """``whole``, ``incomplete`` or ``corrupt``."""
    summary: str
    wall_ns: int
    metadata_digest: int
    """Of the metadata that was verified: a stamp of what has been overwritten since says nothing."""
    hashed: bool = False


_encoder = msgspec.json.Encoder()
_records = msgspec.json.Decoder(FileRecord)
_stamps = msgspec.json.Decoder(Stamp)


def combined(items: Iterable[ItemHash]) -> int | None:
    """Return one digest of all items; None where one of them has none."""
    digest = 0
    for item in items:
        if item.digest is None:
            return None
        digest = zlib.crc32(f"{item.offset},{item.length},{item.digest};".encode(), digest)
    return digest


def in_words(record: FileRecord) -> str:
    """Return what a log says of a file: ``size:digest``, the digest left out where there is none."""
    return f"{record.size_bytes}:{'' if record.digest is None else format(record.digest, '08x')}"


def write_record(directory: Path, record: FileRecord) -> None:
    """Put the record of a file into the checkpoint; raises ``OSError``."""
    if _PLAIN_NAME.fullmatch(record.file):
        _put(directory, record.file, _encoder.encode(record))


def read_records(directory: Path) -> tuple[Mapping[str, FileRecord], tuple[str, ...]]:
    """Return the records of a checkpoint by file, and the names of those that cannot be read."""
    records: dict[str, FileRecord] = {}
    damaged: list[str] = []
    for path in sorted((directory / FOLDER).glob(f"*{ENDING}")):
        if path.name == VERIFIED + ENDING:
            continue
        try:
            record = _records.decode(_content(path))
        except (OSError, msgspec.DecodeError):
            damaged.append(path.name)
            continue
        if record.file == path.name.removesuffix(ENDING):
            records[record.file] = record
        else:
            damaged.append(path.name)
    return records, tuple(damaged)


def write_stamp(directory: Path, stamp: Stamp) -> bool:
    """Leave the outcome of a verification in the checkpoint; return whether that was possible."""
    try:
        _put(directory, VERIFIED, _encoder.encode(stamp))
    except OSError:
        return False
    return True


def read_stamp(directory: Path) -> Stamp | None:
    """Return the outcome of the newest verification, None where there is none that could be read."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return _stamps.decode(_content(directory / FOLDER / (VERIFIED + ENDING)))
    return None


def digest_of(directory: Path) -> int:
    """Return the digest of a checkpoint's metadata, 0 where there is none that could be read."""
    try:
        return zlib.crc32((directory / METADATA).read_bytes())
    except OSError:
        return 0


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_RECORD_BYTES)


def _put(directory: Path, name: str, data: bytes) -> None:
    folder = directory / FOLDER
    folder.mkdir(exist_ok=True)
    unfinished = folder / f"{name}.{os.getpid()}.tmp"
    unfinished.write_bytes(data)
    unfinished.replace(folder / (name + ENDING))
