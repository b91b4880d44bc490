"""What an importer is, and what it hands over."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from distdiag.events import Call, Event, Status
from distdiag.run import Measurements
from distdiag.run.held import Rows

OWN_BESIDES = ".crash.txt"
"""What recording leaves beside its logs."""
UNHEARD = "unheard"
"""Setting of a rank of which nothing was found, though others were heard of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What foreign files tell of one rank, as the records of a log: its header first.

    A source that has no monotonic clock writes wall time and gives both clocks of the header the same value.
    What the source cannot know is left out.
    """

    rank: int | None
    """None where nothing tells whose it is; such records can be kept, but not compared."""
    attempt: int
    events: Sequence[Event]
    """All records; of a source with many calls all but those and their ends."""
    calls: Rows | None = None
    dones: Rows | None = None
    notes: tuple[str, ...] = ()
    """What could not be read, in words."""

    def records(self) -> Iterator[Event]:
        """Yield all records in the order of a log, which tells last how far everything got."""
        last = next((place for place, event in enumerate(self.events) if isinstance(event, Status)), len(self.events))
        yield from self.events[:last]
        for rows in (self.calls, self.dones):
            if rows is not None:
                yield from rows.records()
        yield from self.events[last:]

    @property
    def tells_calls(self) -> bool:
        """Return whether any call is told."""
        return bool(self.calls) or any(isinstance(event, Call) for event in self.events)


class Importer(Protocol):
    """What an importer module has to have."""

    __name__: str
    NAME: str
    """What the source is called in headers and reports: ``flight-recorder``, ``stderr`` …"""

    def recognises(self, path: Path, head: bytes) -> bool:
        """Return whether a file is of this kind, by the beginning of its content."""

    def read(self, files: Sequence[Path]) -> Iterable[Imported]:
        """Yield what the files tell, by rank and attempt; what cannot be read becomes a note."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measured:
    """What foreign files hold that are tables of measurements instead of records."""

    tables: Measurements
    notes: tuple[str, ...] = ()
    """What could not be read, in words."""


class TableImporter(Protocol):
    """What an importer module of such files has to have."""

    __name__: str
    NAME: str

    def recognises(self, path: Path, head: bytes) -> bool:
        """Return whether a file is of this kind, by the beginning of its content."""

    def read(self, files: Sequence[Path]) -> Measured:
        """Return what all these files hold together.

        Raises ``DistdiagError`` where they cannot be read or do not belong together.
        """
