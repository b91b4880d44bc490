"""Decoding of all records that are not calls or their ends: few, and checked one by one."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from distdiag import events
from distdiag.run.frames import Ranked
from distdiag.run.window import Part

_KNOWN_KINDS = frozenset(events.kind_of(event) for event in events.EVENTS)
_REPEATED = (b'{"kind":"path"', b'{"kind":"signature"')
"""Beginnings of lines that may be the same on thousands of ranks: what they say is then one record."""
MOST_SHARED = 50_000


class _Kind(msgspec.Struct):
    kind: str = ""


_kind = msgspec.json.Decoder(_Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The records by kind, in the order of ranks and lines, and what could not be understood."""

    by_kind: dict[type[events.Event], list[Ranked]]
    undecodable: Counter[str]
    """Damaged lines by file name."""
    unknown_kinds: Counter[str]
    ranks: set[int] = field(default_factory=set)
    """Ranks of which anything could be read."""
    shared: dict[bytes, events.Event] = field(default_factory=dict)
    """Interned records that are the same on many ranks, and then one object, by their lines."""

    @classmethod
    def none(cls) -> "Records":
        """Return what holds nothing yet."""
        return cls(by_kind={kind: [] for kind in events.EVENTS}, undecodable=Counter(), unknown_kinds=Counter())

    def take(self, rank: int, record: events.Event) -> None:
        """Take a record that was decoded already."""
        if isinstance(record, events.Group):
            record.ranks = record.members()  # thousands of ranks name the same thousands of members
        elif isinstance(record, events.Path | events.Signature):
            line = events.encode(record)
            record = self.shared.setdefault(line, record) if len(self.shared) < MOST_SHARED else record
        self.by_kind[type(record)].append(Ranked(rank=rank, record=record))

    def note_unfit(self, part: Part, line: bytes) -> None:
        """Count a line that holds no record that this version knows."""
        try:
            kind = _kind.decode(line).kind
        except msgspec.DecodeError:
            kind = ""
        if not kind or kind in _KNOWN_KINDS:
            self.undecodable[part.log.path.name] += 1
        else:
            self.unknown_kinds[kind] += 1


def decode_lines(parts: Sequence[Part], lines: Iterable[tuple[int, bytes | None]]) -> Records:
    """Sort lines by kind; a line is None where the engine found no JSON."""
    records = Records.none()
    unreadable: Counter[int] = Counter()
    shared: dict[bytes, events.Event] = {}
    for file, line in lines:
        if line is None:
            unreadable[file] += 1
        else:
            _take(records, parts[file], line, shared)
    for file, count in unreadable.items():
        # NULs or a torn line at the end of a file are one line to the engine, and normal.
        records.undecodable[parts[file].log.path.name] += count - parts[file].damaged_end
    return records


def _take(records: Records, part: Part, line: bytes, shared: dict[bytes, events.Event]) -> None:
    record = shared.get(line)
    if record is None:
        try:
            record = _decoded(line)
        except (msgspec.DecodeError, ValueError):
            records.note_unfit(part, line)
            return
        if line.startswith(_REPEATED) and len(shared) < MOST_SHARED:
            shared[line] = record
    records.ranks.add(part.rank)
    if not isinstance(record, events.Call | events.Done):  # in an unusual order of fields; the engine has read them
        records.by_kind[type(record)].append(Ranked(rank=part.rank, record=record))


def _decoded(line: bytes) -> events.Event:
    record = events.decode(line)
    if isinstance(record, events.Group):
        record.ranks = record.members()  # thousands of ranks name the same thousands of members
    return record
