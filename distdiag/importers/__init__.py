"""Foreign files become the records of a log, so that the same analyzers meet them, or tables of measurements.

To add an importer, write a module with ``NAME``, ``recognises(path, head)`` and ``read(files)`` and name it in
``IMPORTERS`` if it reads records, in ``TABLES`` if it reads measurements.
"""

import dataclasses
import functools
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from distdiag import run
from distdiag.allocation import without_collecting
from distdiag.deferred import deferred
from distdiag.engine.packs import Manifest, Told, manifest_of
from distdiag.errors import DistdiagError
from distdiag.importers import flight_recorder, op_tables, profiler
from distdiag.importers._contract import Imported, Importer, Measured, TableImporter
from distdiag.importers._launches import SeveralRunsError, named
from distdiag.importers._merging import held, merged
from distdiag.importers._sorting import Scratch, Sorted, sorted_files
from distdiag.run import Measurements, Quality, Run
from distdiag.run.packing import Packed
from distdiag.run.packing import pack as write

__all__ = [
    "IMPORTERS",
    "TABLES",
    "Imported",
    "Importer",
    "Measured",
    "SeveralRunsError",
    "TableImporter",
    "begin",
    "load",
    "pack",
]

if TYPE_CHECKING:
    from distdiag.importers import stacks as _stacks
    from distdiag.importers import stderr as _stderr
else:
    # Asked last, and what they look for takes long to be made ready. Imports of the modules would rebind their names.
    _stacks, _stderr = deferred("distdiag.importers.stacks"), deferred("distdiag.importers.stderr")

IMPORTERS: tuple[Importer, ...] = (flight_recorder, _stacks, _stderr)
"""In the order of trust: where two sources tell the calls of one rank, the first one's are taken."""


TABLES: tuple[TableImporter, ...] = (op_tables, profiler)


def load(*paths: Path, written: bool = False) -> Run:
    """Read whatever folders and files hold as one run: own logs, foreign files converted, tables beside them.

    What is converted becomes files when something asks for them; ``written`` says that they are wanted now.

    Raises ``DistdiagError`` when there is nothing that could be analysed, ``SeveralRunsError`` where there is more
    than one run.
    """
    return begin(*paths, written=written)()


def begin(*paths: Path, written: bool = False) -> Callable[[], Run]:
    """Begin to read what ``load`` reads, and return what returns it: meanwhile there may be libraries to import."""
    files = _sorted(paths)
    manifest = None if files.loadable is None else manifest_of(files.loadable)
    if files.loadable is not None and manifest is not None:
        return functools.partial(_unpacked, files.loadable, manifest, files.scratch)
    return functools.partial(_loaded, named(paths), files, _begun(files.foreign), written)


def _sorted(paths: Sequence[Path]) -> Sorted:
    for path in paths:
        if not path.exists():
            raise DistdiagError(f"no such file or directory: {path}", "pass the directory given to distdiag.install()")
    return sorted_files(paths, IMPORTERS, TABLES)


def _loaded(path: str, files: Sorted, begun: Sequence[Iterable[Imported]], written: bool) -> Run:
    tables, notes = _measured(files)
    with without_collecting():
        imported, unread = _read(begun)
        notes = (*notes, *unread)
        if tables.rows and not files.own and not imported:
            return run.measured(tables, _told(Quality(files=0, bytes=0), files, tables, notes))
        loaded = _records(path, files, imported, notes, written=written)
    if not files.tables:
        return loaded
    return dataclasses.replace(
        loaded,
        operations=tables.operations,
        profiles=tables.profiles,
        collectives=tables.collectives,
        quality=_told(loaded.quality, files, tables, notes),
    )


def pack(path: Path, folder: Path) -> tuple[Packed, tuple[str, ...]]:
    """Write the logs of a directory, and what other sources tell of its ranks, as a packed run into ``folder``.

    Returns what was written, and what was left out in words. Raises ``DistdiagError`` where no records are found.
    """
    files = _sorted((path,))
    if files.loadable is not None and manifest_of(files.loadable) is not None:
        raise DistdiagError(f"{files.loadable} is packed already", "analyse it as it is")
    left_out = tuple(f"{len(found)} {table.NAME} files are not packed" for table, found in files.tables.items())
    imported, notes = _read(_begun(files.foreign))
    if not imported and files.loadable is not None:
        return write(files.loadable, folder), left_out
    if not imported and not files.own:
        raise _nothing(str(path), files, notes)
    quality = _told(Quality(files=0, bytes=0), files, Measurements(), notes)
    told = Told(files=quality.files, bytes=quality.bytes, notes=quality.notes)
    with tempfile.TemporaryDirectory(prefix="distdiag-") as directory:
        return write(merged(files.own, imported, Path(directory)), folder, told), left_out


def _unpacked(path: Path, manifest: Manifest, scratch: Scratch) -> Run:
    """Return a packed run with the quality of the sources that it was made of."""
    loaded, told = run.load(path), manifest.told
    weakref.finalize(loaded.engine, scratch.release)
    if told is None:
        return loaded
    quality = dataclasses.replace(loaded.quality, files=told.files, bytes=told.bytes, notes=told.notes)
    return dataclasses.replace(loaded, quality=quality)


def _records(path: str, files: Sorted, imported: Sequence[Imported], notes: tuple[str, ...], *, written: bool) -> Run:
    """Return the run of own logs and of the records of other sources."""
    if not imported and not files.own:
        raise _nothing(path, files, notes)
    if files.loadable is not None and not files.foreign:
        loaded = run.load(files.loadable)
        told = _noted(loaded.quality, files)
    elif logs := None if files.own or written else held(imported):
        loaded = run.load_held(logs)
        told = _told(loaded.quality, files, Measurements(), notes)
    else:
        loaded = _merged(files, imported)
        told = _told(loaded.quality, files, Measurements(), notes)
    weakref.finalize(loaded.engine, files.scratch.release)
    return dataclasses.replace(loaded, quality=told)


def _merged(files: Sorted, imported: Sequence[Imported]) -> Run:
    directory = Path(tempfile.mkdtemp(prefix="distdiag-"))
    try:
        loaded = run.load(merged(files.own, imported, directory))
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    # The engine reads the files as long as any run made of this one lives.
    weakref.finalize(loaded.engine, shutil.rmtree, directory, ignore_errors=True)
    return loaded


def _nothing(path: str, files: Sorted, notes: Sequence[str]) -> DistdiagError:
    """Return why there is nothing to analyse."""
    if set(files.foreign) == {_stderr}:
        return DistdiagError(
            f"nothing in {path} tells of a failure",
            "what a job prints tells something only where it failed; recording tells more: distdiag run train.py",
        )
    if files.foreign:
        said = "".join(f"; {note}" for note in notes[:1])
        unsigned = "tells the rank" in said or "tell the rank" in said or "after its rank" in said
        hint = "name each file after its rank, and analyse them again" if unsigned else "are they whole?"
        return DistdiagError(f"nothing could be read from {_count(files)} in {path}{said}", hint)
    notes = (*files.notes, *files.left_out)
    if not notes:
        return DistdiagError(
            f"no logs in {path}: there is nothing in it", "pass the directory given to distdiag.install()"
        )
    return DistdiagError(
        f"nothing in {path} is understood: {'; '.join(notes)}",
        "logs of ranks, dumps, traces, tables of operations, stacks, and output that tells of a failure are",
    )


def _noted(quality: Quality, files: Sorted) -> Quality:
    """Return the quality of logs that are read as they are, with what else lies there."""
    return dataclasses.replace(quality, notes=(*quality.notes, *files.left_out))


def _told(quality: Quality, files: Sorted, tables: Measurements, notes: tuple[str, ...]) -> Quality:
    return dataclasses.replace(
        quality,
        files=sum(1 for _ in files.all),
        bytes=sum(file.stat().st_size for file in files.all),
        measured_rows=tables.rows,
        notes=(*notes, *files.notes, *files.left_out),
    )


def _measured(files: Sorted) -> tuple[Measurements, tuple[str, ...]]:
    """Return the tables of all importers as one, and what they could not read: beside own logs that is no error."""
    measured: list[Measured] = []
    notes: list[str] = []
    for importer, found in files.tables.items():
        try:
            measured.append(importer.read(found))
        except DistdiagError as error:
            if not files.own:
                raise
            notes.append(error.message)
    tables = Measurements()
    for each in measured:
        tables = dataclasses.replace(
            tables,
            operations=each.tables.operations if len(each.tables.operations) else tables.operations,
            profiles=each.tables.profiles if len(each.tables.profiles) else tables.profiles,
            collectives=each.tables.collectives if len(each.tables.collectives) else tables.collectives,
            world_size=each.tables.world_size or tables.world_size,
        )
    return tables, (*notes, *(note for each in measured for note in each.notes))


def _begun(foreign: Mapping[Importer, Sequence[Path]]) -> list[Iterable[Imported]]:
    return [importer.read(files) for importer, files in foreign.items()]


def _read(begun: Iterable[Iterable[Imported]]) -> tuple[tuple[Imported, ...], tuple[str, ...]]:
    read = tuple(each for told in begun for each in told)
    notes = tuple(dict.fromkeys(note for each in read for note in each.notes))
    return tuple(each for each in read if each.events), notes


def _count(files: Sorted) -> str:
    return " and ".join(f"{len(found)} {importer.NAME} files" for importer, found in files.foreign.items())
