"""The entries of a dump as typed values: other writers leave fields out, or give them other types."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any

import msgspec

from distdiag.importers._operations import UNFIT

MAX_ENTRIES = 200_000
"""A hundred times the usual ring; of more, the newest count."""
MAX_NUMBER = 1 << 40
MAX_TIME_NS = 1 << 62

Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
Moment = Annotated[int, msgspec.Meta(ge=0, le=MAX_TIME_NS)]
Name = Annotated[str, msgspec.Meta(max_length=4096)]


class Entry(msgspec.Struct, kw_only=True, gc=False):
    """One recorded operation. Sizes, types and frames stay as they came: they repeat, and are read once each."""

    record_id: Number = 0
    pg_id: Number | None = None
    process_group: tuple[Name, Name] | None = None
    """Name and description; schema 1 has only ``pg_id``."""
    collective_seq_id: Number | None = None
    seq_id: Number | None = None
    """What schema 1 has in its place."""
    p2p_seq_id: Number = 0
    profiling_name: Name = ""
    input_sizes: Any = None
    output_sizes: Any = None
    input_dtypes: Any = None
    output_dtypes: Any = None
    input_split_sizes: Any = None
    output_split_sizes: Any = None
    state: Name | None = None
    time_created_ns: Moment | None = None
    time_discovered_started_ns: Moment | None = None
    time_discovered_completed_ns: Moment | None = None
    """0 in JSON where a pickle has None."""
    retired: bool = False
    timeout_ms: Number | None = None
    is_p2p: bool | None = None
    duration_ms: float | None = None
    thread_name: Name | None = None
    frames: Any = None
    """Innermost first."""

    @property
    def seq(self) -> int | None:
        """Return the number of the collective, None where the entry bears none."""
        return self.collective_seq_id if self.collective_seq_id is not None else self.seq_id


_FIELDS: Mapping[str, msgspec.structs.FieldInfo] = MappingProxyType(
    {field.name: field for field in msgspec.structs.fields(Entry)}
)
_DECISIVE = frozenset({"process_group", "collective_seq_id", "seq_id", "profiling_name", "state"})
"""An entry in which one of these is nonsense might be taken for another operation: it is left out."""


def entries_of(raw: Any) -> tuple[tuple[Entry, ...], int, int]:
    """Return the entries, how many make no sense, and how many of the oldest were too many."""
    if isinstance(raw, dict):  # by number
        raw = list(raw.values())
    if not isinstance(raw, list):
        return (), 0, 0
    kept = raw[-MAX_ENTRIES:]
    try:
        return tuple(msgspec.convert(kept, list[Entry], strict=False)), 0, len(raw) - len(kept)
    except UNFIT:
        pass
    entries = [entry for each in kept if (entry := _entry(each)) is not None]
    return tuple(entries), len(kept) - len(entries), len(raw) - len(kept)


def _entry(raw: Any) -> Entry | None:
    """Return an entry, field by field where the whole does not fit; None where it cannot be told what it is."""
    try:
        return msgspec.convert(raw, Entry, strict=False)
    except UNFIT:
        pass
    if not isinstance(raw, dict):
        return None
    values: dict[str, Any] = {}
    for name, field in _FIELDS.items():
        value = _repaired(name, raw.get(name))
        if value is None:
            continue
        try:
            values[name] = msgspec.convert(value, field.type, strict=False)
        except UNFIT:
            if name in _DECISIVE:
                return None
    return Entry(**values) if _DECISIVE & values.keys() else None


def _repaired(name: str, value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    repair = _REPAIRS.get(name)
    return value if repair is None else repair(value)


def _group(value: Any) -> Any:
    """Return name and description, which some write as a name alone, or as an object."""
    if isinstance(value, dict):
        value = value.get("name", value.get("pg_name")), value.get("desc", value.get("pg_desc", ""))
    if isinstance(value, str | int):
        value = (value,)
    if not isinstance(value, list | tuple):
        return value
    texts = [str(each) if isinstance(each, int) and abs(each) <= MAX_NUMBER else each for each in value[:2]]
    return (*texts, "")[:2]


_REPAIRS: Mapping[str, Callable[[Any], Any]] = MappingProxyType({"process_group": _group})
