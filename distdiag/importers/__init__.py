"""Foreign files become the records of a log, so that the same analyzers meet them.

To add an importer, write a module with ``NAME``, ``recognises(path, head)`` and ``read(files)`` and name it in
``IMPORTERS``.
"""

import dataclasses
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

from distdiag import run
from distdiag.errors import DistdiagError
from distdiag.importers import flight_recorder, stacks, stderr
from distdiag.importers._contract import Imported, Importer
from distdiag.importers._merging import merged
from distdiag.importers._sorting import Sorted, sorted_files
from distdiag.run import Run

__all__ = ["IMPORTERS", "Imported", "Importer", "load"]

IMPORTERS: tuple[Importer, ...] = (flight_recorder, stacks, stderr)
"""In the order of trust: where two sources tell the calls of one rank, the first one's are taken."""


def load(path: Path) -> Run:
    """Read whatever a directory holds as a run: own logs as they are, foreign files converted.

    Raises ``DistdiagError`` when there is nothing that could be analysed.
    """
    files = sorted_files(path, IMPORTERS)
    if not files.foreign:
        if path.is_file() and not files.own:
            raise DistdiagError(
                f"nothing in {path} is understood",
                "it is no log of a rank, no dump, and no output in which something tells of a failure",
            )
        return run.load(path)
    imported, notes = _read(files.foreign)
    if not imported and not files.own:
        if set(files.foreign) == {stderr}:
            raise DistdiagError(
                f"nothing in {path} tells of a failure",
                "what a job prints tells something only where it failed; recording tells more: distdiag run train.py",
            )
        raise DistdiagError(
            f"nothing could be read from {_count(files)} in {path}" + "".join(f"; {note}" for note in notes[:1]),
            "are they whole? dumps and logs are read, archives have to be unpacked first",
        )
    directory = Path(tempfile.mkdtemp(prefix="distdiag-"))
    try:
        loaded = run.load(merged(files.own, imported, directory))
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    quality = dataclasses.replace(
        loaded.quality,
        files=len(files.own) + sum(map(len, files.foreign.values())),
        bytes=sum(file.stat().st_size for file in files.all),
        notes=(*notes, *files.notes),
    )
    converted = dataclasses.replace(loaded, quality=quality)
    weakref.finalize(converted, shutil.rmtree, directory, ignore_errors=True)
    return converted


def _read(foreign: Mapping[Importer, Sequence[Path]]) -> tuple[tuple[Imported, ...], tuple[str, ...]]:
    read = tuple(each for importer, files in foreign.items() for each in importer.read(files))
    notes = tuple(dict.fromkeys(note for each in read for note in each.notes))
    return tuple(each for each in read if each.events), notes


def _count(files: Sorted) -> str:
    return " and ".join(f"{len(found)} {importer.NAME} files" for importer, found in files.foreign.items())
