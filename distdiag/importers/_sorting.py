"""Which files of a directory are own logs, and which of the others an importer can read."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from distdiag.importers._contract import Importer, TableImporter
from distdiag.journal.segments import segments_of

HEAD_BYTES = 64 << 10
"""What an importer sees of a file to recognise it."""
MAX_FILES = 100_000
"""A directory of more is not a directory of logs."""
MAX_DEPTH = 6
OWN_BESIDES = ".crash.txt"
"""What recording leaves beside its logs."""


class Recognising(Protocol):
    """What knows its files by the beginning of their content."""

    def recognises(self, path: Path, head: bytes) -> bool:
        """Return whether a file is of this kind."""


Recogniser = TypeVar("Recogniser", bound=Recognising)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorted:
    """The files of a directory by who can read them."""

    own: tuple[Path, ...] = ()
    foreign: Mapping[Importer, tuple[Path, ...]] = field(default_factory=dict)
    """In the order of the importers."""
    tables: Mapping[TableImporter, tuple[Path, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def all(self) -> Iterator[Path]:
        """Yield every file that is read."""
        yield from self.own
        for files in (*self.foreign.values(), *self.tables.values()):
            yield from files


def sorted_files(path: Path, importers: Sequence[Importer], tables: Sequence[TableImporter] = ()) -> Sorted:
    """Return the files below ``path``, or ``path`` itself, by who can read them; whatever nobody knows is left out.

    Importers of tables are asked first: text that tells of failures may stand in anything.
    """
    own = _own(path)
    found: dict[Importer, list[Path]] = {}
    measured: dict[TableImporter, list[Path]] = {}
    unknown: list[str] = []
    closed: list[str] = []
    for file in _below(path, set(own)):
        try:
            head = _head(file)
        except OSError:
            closed.append(file.name)
            continue
        if (table := _first(tables, file, head)) is not None:
            measured.setdefault(table, []).append(file)
        elif (importer := _first(importers, file, head)) is not None:
            found.setdefault(importer, []).append(file)
        else:
            unknown.append(file.name)
    return Sorted(
        own=own,
        foreign={importer: tuple(found[importer]) for importer in importers if importer in found},
        tables={table: tuple(measured[table]) for table in tables if table in measured},
        notes=(
            *_note(closed, "may not be read"),
            *_note(unknown, "of no kind that is known"),
        ),
    )


def _own(path: Path) -> tuple[Path, ...]:
    directory = path if path.is_dir() else path.parent
    logs = [file for log in segments_of(directory) for file in log.files] if directory.is_dir() else []
    if path.is_dir():
        return (*logs, *sorted(directory.glob(f"*{OWN_BESIDES}")))
    return (path,) if path in logs else ()


def _below(path: Path, own: set[Path]) -> Iterator[Path]:
    if not path.is_dir():
        if path.is_file() and path not in own:
            yield path
        return
    count = 0
    for directory, folders, names in os.walk(path):
        here = Path(directory)
        deep = len(here.relative_to(path).parts) >= MAX_DEPTH
        folders[:] = [] if deep else sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            file = here / name
            if file in own or name.startswith(".") or not file.is_file():  # opening a pipe would wait for a writer
                continue
            count += 1
            if count > MAX_FILES:
                return
            yield file


def _head(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(HEAD_BYTES)


def _first(importers: Sequence[Recogniser], file: Path, head: bytes) -> Recogniser | None:
    return next((importer for importer in importers if head and importer.recognises(file, head)), None)


def _note(names: Sequence[str], what: str) -> tuple[str, ...]:
    if not names:
        return ()
    shown = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
    return (f"{len(names)} {'file' if len(names) == 1 else 'files'} {what}: {shown}",)
