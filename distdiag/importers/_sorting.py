"""Which files below a path are own logs, and which of the others an importer can read."""

import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from distdiag.engine.packs import MANIFEST
from distdiag.importers._archives import MAX_BYTES, ArchiveError, is_archive, unpack
from distdiag.importers._contract import OWN_BESIDES, Importer, TableImporter
from distdiag.importers._launches import OwnRun, SeveralRunsError, runs_of
from distdiag.journal.segments import place_of, rank_of, segments_of

HEAD_BYTES = 64 << 10
"""What an importer sees of a file to recognise it."""
MAX_FILES = 100_000
"""A directory of more is not a directory of logs."""
MAX_DEPTH = 6
DEEPEST_ARCHIVE = 2
"""An archive of packed files is what people pass on; what is nested deeper is not."""
_BACKUP = re.compile(r"~$|\.(?:bak|orig|swp|swo|tmp|part|crdownload)$", re.IGNORECASE)
"""What editors and copying leave beside a file: the file itself tells the same, or more."""
_QUOTING = re.compile(
    r"\.(?:py|md|rst|ipynb|sh|ya?ml|toml|cfg|ini|html?|js|c|cc|cpp|cuh?|h|hpp|diff|patch)$", re.IGNORECASE
)
"""Sources and documents quote what jobs print: they are no output, unless somebody names them."""
_OWN = re.compile(rb'(?:\xef\xbb\xbf)?\{"kind":"header","schema":"distdiag\.log/')
_RECORD = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{"kind":"\w+"')


class Recognising(Protocol):
    """What knows its files by the beginning of their content."""

    def recognises(self, path: Path, head: bytes) -> bool:
        """Return whether a file is of this kind."""


Recogniser = TypeVar("Recogniser", bound=Recognising)


class Scratch:
    """A folder for what is unpacked; it is removed with the last reference to it, or when it is released."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    @property
    def folder(self) -> Path:
        """Return the folder, which is made when it is first asked for."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="distdiag-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder

    def release(self) -> None:
        """Remove the folder."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorted:
    """The files below a path by who can read them."""

    own: tuple[Path, ...] = ()
    loadable: Path | None = None
    """What holds the own logs, all of them and no others: a folder, a packed run, or the one log."""
    foreign: Mapping[Importer, tuple[Path, ...]] = field(default_factory=dict)
    """In the order of the importers."""
    tables: Mapping[TableImporter, tuple[Path, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """Files that are not understood, in words: beside own logs there may be any."""
    left_out: tuple[str, ...] = ()
    """What could have been told, and is not, in words."""
    scratch: Scratch = field(default_factory=Scratch)
    """Has to live as long as any of the files is read."""

    @property
    def all(self) -> Iterator[Path]:
        """Yield every file that is read."""
        yield from self.own
        for files in (*self.foreign.values(), *self.tables.values()):
            yield from files


def sorted_files(paths: Sequence[Path], importers: Sequence[Importer], tables: Sequence[TableImporter] = ()) -> Sorted:
    """Return the files below ``paths``, or those that they are, by who can read them; archives are unpacked.

    Importers of tables are asked first: text that tells of failures may stand in anything. Raises
    ``SeveralRunsError`` where the own logs are those of several runs, and none of them lies in ``paths`` itself.
    """
    sorting = _Sorting(tables, importers)
    for path in paths:
        sorting.take(path)
    run, others = _chosen(runs_of(sorting.own, paths[0]), paths)
    besides = sorting.settle_crashes(run.folders if run is not None else ())
    elsewhere = {folder for other in others for folder in other.folders}
    known = {each: _outside(files, elsewhere, sorting.own) for each, files in sorting.known.items()}
    return Sorted(
        own=(*run.files, *besides) if run is not None else (),
        loadable=_loadable(run, sorting, paths) if run is not None else None,
        foreign={each: known[each] for each in importers if known.get(each)},
        tables={each: known[each] for each in tables if known.get(each)},
        notes=(
            *_note(sorting.closed, "may not be read"),
            *_note(sorting.unknown, "of no kind that is known"),
        ),
        left_out=(
            *sorting.refused,
            *(f"the logs in {other.folders[0]} are of another run: analyse them by themselves" for other in others),
        ),
        scratch=sorting.scratch,
    )


class _Sorting:
    """Goes through files and sees what each of them is."""

    def __init__(self, tables: Sequence[Recognising], importers: Sequence[Recognising]) -> None:
        self._tables = tables
        self._importers = (*tables, *importers)
        self.own: dict[Path, list[Path]] = {}
        """Own logs by folder; a packed run has none."""
        self.known: dict[Recognising, list[Path]] = {}
        self.unknown: list[str] = []
        self.closed: list[str] = []
        self.refused: list[str] = []
        self.jsonl: set[Path] = set()
        """Folders with files that are named like logs, but are none."""
        self.scratch = Scratch()
        self._crashes: list[Path] = []
        self._room = MAX_BYTES
        self._seen: set[tuple[int, int]] = set()
        """Folders that were gone through: links may lead to one of them."""

    def take(self, path: Path, *, depth: int = 0) -> None:
        """Sort a file, or all files below a folder; ``depth`` is how many archives they were packed in."""
        for file in self._below(path):
            if file.name.endswith(OWN_BESIDES):
                self._crashes.append(file)
                continue
            place = place_of(file.name)
            if place is not None and rank_of(place[0]) is not None:
                self.own.setdefault(file.parent, []).append(file)
                continue
            try:
                head = _head(file)
            except OSError:
                self.closed.append(file.name)
                continue
            if _is_own(file, head):
                self.own.setdefault(file.parent, []).append(file)
            else:
                quoting = file != path and _QUOTING.search(file.name)
                self._foreign(file, head, depth, self._tables if quoting else self._importers)

    def settle_crashes(self, folders: Sequence[Path]) -> list[Path]:
        """Return what recording left beside the logs of a run; of others it is a stack like any."""
        for file in self._crashes:
            if file.parent not in self.own:
                self._foreign(file, _head(file), DEEPEST_ARCHIVE, self._importers)
        return sorted(file for file in self._crashes if file.parent in folders)

    def _foreign(self, file: Path, head: bytes, depth: int, importers: Sequence[Recognising]) -> None:
        importer = next((each for each in importers if head and each.recognises(file, head)), None)
        if importer is not None:
            self.known.setdefault(importer, []).append(file)
        elif depth < DEEPEST_ARCHIVE and is_archive(file, head):
            self._unpack(file, head, depth)
        else:
            self.unknown.append(file.name)
            if place_of(file.name) is not None:
                self.jsonl.add(file.parent)

    def _unpack(self, file: Path, head: bytes, depth: int) -> None:
        """Sort what an archive holds; packed files of one folder come into one folder again."""
        folder = self.scratch.folder / f"{depth}{str(file.parent.absolute()).replace(os.sep, '_')}"
        try:
            inside, written = unpack(file, head, folder, self._room)
        except ArchiveError as error:
            self.refused.append(str(error))
            return
        self._room -= written
        self.take(inside, depth=depth + 1)

    def _below(self, path: Path) -> Iterator[Path]:
        if not path.is_dir():
            if path.is_file():
                yield path
            return
        count = 0
        for directory, folders, names in os.walk(path, followlinks=True):
            here = Path(directory)
            status = here.stat()
            if (status.st_dev, status.st_ino) in self._seen:
                folders.clear()
                continue
            self._seen.add((status.st_dev, status.st_ino))
            deep = len(here.relative_to(path).parts) >= MAX_DEPTH
            packed = MANIFEST in names
            inner = sorted(
                (name for name in folders if not name.startswith(".")), key=lambda n: ((here / n).is_symlink(), n)
            )
            folders[:] = [] if deep or packed else inner
            if packed:
                self.own[here] = []
                continue
            for name in sorted(names):
                file = here / name
                left = name.startswith(".") or _BACKUP.search(name)
                if left or not file.is_file():  # opening a pipe would wait for a writer
                    continue
                count += 1
                if count > MAX_FILES:
                    return
                yield file


def _is_own(file: Path, head: bytes) -> bool:
    """Return whether a file is a log of our own: by its first record, or by its name if it may hold one."""
    if _OWN.match(head):
        return True
    return place_of(file.name) is not None and (not head.strip(b"\0\r\n ") or _RECORD.match(head) is not None)


def _chosen(runs: Sequence[OwnRun], paths: Sequence[Path]) -> tuple[OwnRun | None, tuple[OwnRun, ...]]:
    """Return the run to analyse and those that are left out."""
    if len(runs) < 2:
        return (runs[0] if runs else None), ()
    inside = [run for run in runs if any(folder in paths for folder in run.folders)]
    if len(paths) != 1 or len(inside) != 1:
        raise SeveralRunsError(paths, runs)
    return inside[0], tuple(run for run in runs if run is not inside[0])


def _loadable(run: OwnRun, sorting: _Sorting, paths: Sequence[Path]) -> Path | None:
    part = run.parts[0]
    if len(run.parts) > 1 or part.folder in sorting.jsonl:
        return None
    if not part.files:
        return part.folder
    if len(paths) == 1 and paths[0] in part.files:
        return paths[0]
    named = {file for log in segments_of(part.folder) for file in log.files}
    return part.folder if named == set(part.files) else None


def _outside(files: Sequence[Path], elsewhere: Collection[Path], own: Collection[Path]) -> tuple[Path, ...]:
    """Return the files that do not lie beside, or below, the logs of other runs."""
    if not elsewhere:
        return tuple(files)
    return tuple(
        file for file in files if next((folder for folder in file.parents if folder in own), None) not in elsewhere
    )


def _head(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(HEAD_BYTES)


def _note(names: Sequence[str], what: str) -> tuple[str, ...]:
    if not names:
        return ()
    shown = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
    return (f"{len(names)} {'file' if len(names) == 1 else 'files'} {what}: {shown}",)
