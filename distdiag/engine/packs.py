"""Packed runs: logs as partitioned Parquet, and what a manifest says of the files that they were.

A packed folder holds ``kind=<kind>/rank_range=<first>-<last>/records.parquet``. Columns are the fields of the kind,
their defaults filled in, and before them ``file`` (position in the manifest), ``row`` (position of the line in it)
and ``rank``. Kinds that are not a log's bulk have the line as it was recorded, too, as ``record``; ``kind=other``
holds the lines that no kind claims, NULL where they are no JSON.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from distdiag import events
from distdiag.engine import BULK, FILE, LINES_AT_ONCE, Engine, readable, sql, united
from distdiag.engine.sql import Kinds
from distdiag.errors import DistdiagError

if TYPE_CHECKING:
    import ibis

MANIFEST = "distdiag-pack.json"
SCHEMA = "distdiag.pack/1"
OTHER = "other"
"""Kind of the lines that no kind claims."""
NEWEST = ".newest"
"""Ends the name of a file of which only the newest records are meant."""
LEANED_ON: tuple[type[events.Event], ...] = (events.Header, events.Group, events.Path, events.Signature)
"""Kinds that newer records lean on: they are read from the beginning of a file, too."""
BULK_KINDS = frozenset(events.kind_of(kind) for kind in BULK)


class PackedFile(msgspec.Struct, kw_only=True):
    """One file of a log, as it was when it was packed."""

    name: str
    used_bytes: int
    torn: bool
    header: str | None = None
    """The line that says who wrote it."""
    last: str | None = None
    """Its last line with a moment."""
    head_rows: int = 0
    """Where the run is too long to be read whole: rows of its beginning of which kinds that are leaned on are read."""
    newest_row: int = 0
    """Where the run is too long to be read whole: the row from which on it is read."""


class Told(msgspec.Struct, kw_only=True):
    """The quality of what was read besides logs, as the report of the sources said it."""

    files: int
    bytes: int
    notes: tuple[str, ...]


class Manifest(msgspec.Struct, kw_only=True):
    """What a packed folder holds."""

    schema: str = SCHEMA
    kinds: tuple[str, ...]
    files: tuple[PackedFile, ...]
    told: Told | None = None


class _Schema(msgspec.Struct):
    schema: str


def manifest_of(path: Path) -> Manifest | None:
    """Return what a packed folder says of itself, None for any other path.

    Raises ``DistdiagError`` where it cannot be read, or was packed by a newer version.
    """
    file = path / MANIFEST
    if not file.is_file():
        return None
    try:
        data = file.read_bytes()
        schema = msgspec.json.decode(data, type=_Schema).schema
        if schema == SCHEMA:
            return msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, OSError) as error:
        raise DistdiagError(f"{file} cannot be read: {error}", "pack the logs again") from error
    raise DistdiagError(
        f"{path} is packed as {schema}; this version reads {SCHEMA}",
        "analyse it with the version of distdiag that packed it, or a newer one",
    )


def newest_of(path: Path) -> Path:
    """Return the path that stands for the newest records of a packed file."""
    return path.with_name(path.name + NEWEST)


@dataclass(frozen=True, slots=True)
class Span:
    """What is wanted of one packed file."""

    place: int | None
    """Its place in the list of files that is read; None where it is not in it."""
    first_row: int = 0
    head_rows: int = 0


def spans_of(manifest: Manifest, files: Sequence[Path]) -> list[Span]:
    """Return what is wanted of each file of a pack."""
    places = {path.name: place for place, path in enumerate(files)}
    return [_span(file, places) for file in manifest.files]


def _span(file: PackedFile, places: dict[str, int]) -> Span:
    if file.name in places:
        return Span(places[file.name])
    return Span(places.get(file.name + NEWEST), file.newest_row, file.head_rows)


class PackEngine(Engine):
    """Reads files of a packed run as if they were there: paths are the folder's, with the names the files had."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        super().__init__()
        self.folder = folder
        self.manifest = manifest

    def read(self, files: Sequence[Path], kind: Kinds, only: Collection[str] | None = None) -> ibis.Table:
        """Return the records of one kind as a lazy table, as ``Engine.read`` does."""
        if isinstance(kind, tuple):
            return united(self, files, kind, only)
        schema = sql.schema_of(kind, only)
        name = events.kind_of(kind)
        if name in self.manifest.kinds:
            columns = ", ".join(sql.named(column) for column in schema.names if column != FILE)
            query = f"SELECT place AS {FILE}, {columns} FROM ({self._wanted(files, name)}) WHERE row >= first_row"
        else:
            nulls = ", ".join(f"NULL AS {sql.named(column)}" for column in schema.names)
            query = f"SELECT {nulls} WHERE false"
        return self._view(query, schema).cast(schema)

    def rows(self, files: Sequence[Path], kind: type[events.Event]) -> Any:
        """Return the records of one kind as an Arrow table."""
        return self.arrow(self.read(files, kind))

    def other_lines(self, files: Sequence[Path]) -> Iterator[tuple[int, bytes | None]]:
        """Yield file and text of every line that is not of a bulk kind, None for a line that is no JSON."""
        return self._texts(files, [kind for kind in self.manifest.kinds if kind not in BULK_KINDS])

    def lines_of(
        self, files: Sequence[Path], kinds: Sequence[type[events.Event]]
    ) -> Iterator[tuple[int, bytes | None]]:
        """Yield file and text of every line of some kinds, which must not be of a log's bulk."""
        names = {events.kind_of(kind) for kind in kinds}
        return self._texts(files, [kind for kind in self.manifest.kinds if kind in names])

    def _wanted(self, files: Sequence[Path], kind: str) -> str:
        """Return a query for the rows of wanted files, with their ``place`` in the list and what is read of them."""
        spans = spans_of(self.manifest, files)
        columns = {
            "place": ["NULL" if span.place is None else str(span.place) for span in spans],
            "first_row": [str(span.first_row) for span in spans],
            "head_rows": [str(span.head_rows) for span in spans],
        }
        looked_up = ", ".join(
            f"CAST({sql.listed(values)} AS BIGINT[])[{FILE} + 1] AS {name}" for name, values in columns.items()
        )
        pattern = sql.text(str(self.folder / f"kind={kind}" / "*" / "*.parquet"))
        source = f"SELECT *, {looked_up} FROM read_parquet({pattern}, hive_partitioning = false)"
        return f"SELECT * FROM ({source}) WHERE place IS NOT NULL"

    def _texts(self, files: Sequence[Path], kinds: Sequence[str]) -> Iterator[tuple[int, bytes | None]]:
        if not kinds:
            return
        leaned_on = {events.kind_of(kind) for kind in LEANED_ON}
        parts = [
            f"SELECT place, row, record FROM ({self._wanted(files, kind)}) "
            f"WHERE row >= first_row{' OR row < head_rows' if kind in leaned_on else ''}"
            for kind in kinds
        ]
        query = f"SELECT place, encode(record) AS line FROM ({' UNION ALL '.join(parts)}) ORDER BY place, row"
        with readable():
            for batch in self._connection.cursor().sql(query).to_arrow_reader(LINES_AT_ONCE):
                yield from zip(batch["place"].to_pylist(), batch["line"].to_pylist(), strict=True)
