"""Logs in an object store or a distributed file system: what a verdict needs of them is fetched, the rest stays there.

Spark reads the whole logs in place. Of logs too long to be read whole, the beginning and the newest part of each file
are fetched, through the file systems that Spark knows.
"""

import dataclasses
import re
import shutil
import tempfile
import weakref
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from distdiag import events, importers
from distdiag.engine.packs import MANIFEST
from distdiag.engine.spark import SparkEngine, readable
from distdiag.errors import DistdiagError
from distdiag.journal.segments import place_of
from distdiag.run import Run
from distdiag.run.window import HEAD_BYTES, LEAST_BYTES, WHOLE_BYTES, newest_part

MAX_OTHER_BYTES = 1 << 30
"""Of all files that are no logs (dumps, output of training): more is not what a job says of its end."""
INTERNED = (events.Path, events.Signature, events.Group)
_URI = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]+):/+(?P<rest>.+?)/*")
_SCHEMES = {"s3": "s3a", "gcs": "gs"}
"""What Hadoop calls file systems that people call otherwise."""


def uri_of(path: Path) -> str | None:
    """Return the URI that a path was before it was made one, None for one of this machine: ``s3:/bucket/logs``."""
    match = _URI.fullmatch(path.as_posix())
    if match is None:
        return None
    scheme = _SCHEMES.get(match["scheme"], match["scheme"])
    return f"{scheme}://{'/' if scheme == 'file' else ''}{match['rest']}"


def load(uri: str, session: Any) -> Run:
    """Read the logs of a folder elsewhere, its passes over whole logs left to Spark.

    Raises ``DistdiagError`` where the folder cannot be read, or holds nothing that could be analysed.
    """
    folder = Path(tempfile.mkdtemp(prefix="distdiag-"))
    try:
        run = _load(_Store(session, uri), folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(run.engine, shutil.rmtree, folder, ignore_errors=True)
    return run


def _load(store: "_Store", folder: Path) -> Run:
    sizes = store.sizes()
    if MANIFEST in sizes:
        store.fetch_all(folder)
        return _on_spark(importers.load(folder, written=True), store, folder)
    logs = {name: size for name, size in sizes.items() if place_of(name) is not None}
    if sum(sizes.values()) - sum(logs.values()) > MAX_OTHER_BYTES:
        raise DistdiagError(f"{store.uri} holds more than logs", "name a folder of logs alone")
    total = sum(logs.values())
    stems = {place[0] for name in logs if (place := place_of(name)) is not None}
    window = None if total <= WHOLE_BYTES else max(LEAST_BYTES, WHOLE_BYTES // max(1, len(stems)))
    starts = _starts(logs, window)
    for name, size in sizes.items():
        store.fetch(name, folder / name, starts.get(name, 0), size)
    run = importers.load(folder, written=True)
    if window is None:
        return _on_spark(run, store, folder)
    if run.quality.unresolved_calls:
        _add_interned(_on_spark(run, store, folder), [folder / name for name, start in starts.items() if start])
        run = importers.load(folder, written=True)
    quality = dataclasses.replace(run.quality, bytes=total, window_bytes=window)
    return _on_spark(dataclasses.replace(run, quality=quality), store, folder)


def _on_spark(run: Run, store: "_Store", folder: Path) -> Run:
    return dataclasses.replace(run, engine=SparkEngine(store.session, run.engine, folder, store.uri))


def _starts(logs: Mapping[str, int], window: int | None) -> dict[str, int]:
    """Return from where on each file is fetched: the newest bytes of each process, its segments together."""
    starts: dict[str, int] = {}
    left: dict[tuple[str, int], int] = {}
    places = {name: place_of(name) or (name, 0, 0) for name in logs}
    for name in sorted(logs, key=places.__getitem__, reverse=True):
        process = places[name][:2]
        room = left.get(process, logs[name] if window is None else window)
        starts[name] = logs[name] - min(logs[name], room) if window is not None else 0
        left[process] = max(0, room - logs[name])
    return {name: start if start > HEAD_BYTES else 0 for name, start in starts.items()}


def _add_interned(run: Run, cut: Iterable[Path]) -> None:
    """Put what calls lean on and what stood in the parts that were not fetched into the files."""
    files = list(cut)
    found: defaultdict[int, list[bytes]] = defaultdict(list)
    for file, line in run.engine.lines_of(files, INTERNED):
        found[file].append((line or b"") + b"\n")
    for number, lines in found.items():
        data = files[number].read_bytes()
        end = data.find(b"\n") + 1  # behind the header
        files[number].write_bytes(data[:end] + b"".join(lines) + data[end:])


class _Store:
    """A folder of a file system that Spark knows."""

    def __init__(self, session: Any, uri: str) -> None:
        self.session = session
        self.uri = uri.rstrip("/")
        self._java = session.sparkContext._jvm
        self._path = self._java.org.apache.hadoop.fs.Path
        with readable(f"{uri} cannot be read"):
            self._files = self._path(uri).getFileSystem(session.sparkContext._jsc.hadoopConfiguration())

    def sizes(self) -> dict[str, int]:
        """Return the files of the folder with their sizes, sorted."""
        with readable(f"{self.uri} cannot be read"):
            found = self._files.listStatus(self._path(self.uri))
            return dict(sorted((each.getPath().getName(), each.getLen()) for each in found if each.isFile()))

    def fetch_all(self, folder: Path) -> None:
        """Copy the folder with all that is in it."""
        with readable(f"{self.uri} cannot be read"):
            for each in self._files.listStatus(self._path(self.uri)):
                self._copy(each.getPath(), folder / each.getPath().getName())

    def fetch(self, name: str, target: Path, start: int, size: int) -> None:
        """Copy a file or, from a ``start`` behind its beginning, what is read of it."""
        source = self._path(f"{self.uri}/{name}")
        with readable(f"{self.uri}/{name} cannot be read"):
            if not start:
                self._copy(source, target)
                return
            head = self._piece(source, target, 0, HEAD_BYTES)
            tail = self._piece(source, target, start, size - start)
            if not tail.strip(b"\0"):  # space that was reserved: what is written lies before it
                self._copy(source, target)
                return
        target.write_bytes(newest_part(head, tail))

    def _copy(self, source: Any, target: Path) -> None:
        self._files.copyToLocalFile(False, source, self._path(f"file://{target}"), True)

    def _piece(self, source: Any, target: Path, start: int, count: int) -> bytes:
        piece = target.with_name(f".{target.name}.piece")
        stream = self._files.open(source)
        stream.seek(start)
        copied = self._java.java.io.FileOutputStream(str(piece))
        self._java.org.apache.hadoop.io.IOUtils.copyBytes(stream, copied, count, True)
        data = piece.read_bytes()
        piece.unlink()
        return data
