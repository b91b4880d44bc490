"""One file of PyTorch's flight recorder as typed values, whatever its schema, its format and its defects.

The recorder of torchcomms has the form of PyTorch's, but one counter for all communicators and messages of a process,
and it says that an operation ended by no longer watching it: its state may read ``completed`` before, as the event
that would tell is recorded last, or ``scheduled`` for ever. There operations are numbered by process group here.
"""

import functools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from distdiag.importers._entries import MAX_NUMBER, Entry, entries_of
from distdiag.importers._operations import UNFIT, writable
from distdiag.importers._pickles import MAX_BYTES, MAX_CONTAINERS, RefusedError, read_pickle

_MESSAGES = ("send", "recv")
_UNSPACED = re.compile(r"\[?\d+,\d[\d,]*\]?")
"""PyTorch puts a blank behind each comma of a group's ranks, torchcomms does not."""
_MILLISECOND_NS = 1_000_000


def is_of_communicators(configs: Any) -> bool:
    """Return whether torchcomms wrote a dump, by how it tells who is in a group."""
    told = configs.values() if isinstance(configs, dict) else ()
    ranks = [each.get("ranks") for each in told if isinstance(each, dict)]
    return any(isinstance(each, str) and _UNSPACED.fullmatch(each) is not None for each in ranks)


def of_communicators(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return the entries of a dump of torchcomms as PyTorch would have written them.

    Raises ``RefusedError`` where the number that an operation has in its group cannot be told.
    """
    ended = [_ended(entry) for entry in entries]
    alone = len({entry.process_group for entry in entries}) < 2 and not any(map(_is_message, entries))
    if alone and all(entry.seq is not None for entry in entries):
        return tuple(replace(entry, collective_seq_id=(entry.seq or 0) + 1) for entry in ended)
    return counted(ended)


def counted(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return entries with the numbers that they have in their groups, messages apart.

    Raises ``RefusedError`` where older ones are missing: nobody knows how many those were.
    """
    if [entry.record_id for entry in entries] != list(range(len(entries))):
        raise RefusedError("its entries are not numbered by group, and the oldest are missing")
    return tuple(_counted(entries))


def _counted(entries: Sequence[Entry]) -> Iterator[Entry]:
    counts: dict[object, int] = {}
    for entry in entries:
        group = entry.process_group or entry.pg_id
        message = _is_message(entry)
        key = group, message
        counts[key] = counts.get(key, 0) + 1
        collectives, messages = counts.get((group, False), 0), counts.get((group, True), 0)
        yield replace(entry, collective_seq_id=collectives, p2p_seq_id=messages if message else 0, is_p2p=message)


def _is_message(entry: Entry) -> bool:
    return bool(entry.is_p2p) or entry.profiling_name.rpartition(":")[2].startswith(_MESSAGES)


def _ended(entry: Entry) -> Entry:
    """Return an entry whose state says that it ended where it is no longer watched, and that it did not elsewhere."""
    if not entry.retired:
        state = "started" if entry.time_discovered_started_ns else "scheduled"
        return replace(entry, state=state, time_discovered_completed_ns=None)
    if entry.time_discovered_completed_ns or entry.time_created_ns is None:
        return replace(entry, state="completed")
    duration = entry.duration_ms or 0.0
    end_ns = entry.time_created_ns + int(min(max(duration, 0.0), 1e9) * _MILLISECOND_NS)
    return replace(entry, state="completed", time_discovered_completed_ns=end_ns)


MAX_GROUPS = 20_000
MAX_RANKS = 1 << 18
"""A group that speaks of more is damaged; no job has so many."""
Members = Annotated[list[Annotated[int, msgspec.Meta(ge=0, lt=MAX_RANKS)]], msgspec.Meta(max_length=MAX_RANKS)]

RANKS = ("rank", "global_rank")
"""What says whose dump it is, where anything does."""
SAME_MEMBERS = 256
"""Groups whose members are remembered from one dump to the next."""
_RANKS = re.compile(r"\s*[\[({]?[\d,\s]*[\])}]?\s*")
_PROGRESS = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A process group as one rank configured it."""

    description: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a group got according to its backend; None where it says nothing, 0 where nothing got so far."""

    enqueued: int | None
    started: int | None
    completed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """What one file says."""

    path: Path
    has_frames: bool
    """Whether the format can hold call sites: a pickle can, JSON cannot."""
    version: str
    library: str
    """Version of the communication library."""
    configs: Mapping[str, Config] = field(default_factory=dict)
    progress: Mapping[int, Progress] = field(default_factory=dict)
    """By the number that this process gave the group."""
    entries: tuple[Entry, ...] = ()
    """Oldest first."""
    rank: int | None = None
    """As the file says: other writers than PyTorch's tell it."""
    unread: int = 0
    """Entries that made no sense."""
    dropped: int = 0
    """Oldest entries that were too many."""


def read_dump(path: Path) -> Dump:
    """Return what a dump says; raise ``RefusedError`` where it is none, and ``OSError`` where it cannot be read."""
    with path.open("rb") as file:
        # Not more than there is: making room for the most there may be takes as long as reading it.
        data = file.read(min(os.fstat(file.fileno()).st_size, MAX_BYTES) + 1)
    if len(data) > MAX_BYTES:
        raise RefusedError(f"it has more than {MAX_BYTES} bytes")
    pickled = not is_json(data)
    content = read_pickle(data) if pickled else _read_json(data)
    content = _dump_in(content)
    entries, unread, dropped = entries_of(content.get("entries"))
    if unread and not entries:
        raise RefusedError(f"none of its {unread} entries makes sense")
    if is_of_communicators(content.get("pg_config")):
        entries = of_communicators(entries)
    elif entries and not any(entry.seq is not None or entry.p2p_seq_id for entry in entries):
        entries = counted(entries)
    return Dump(
        path=path,
        has_frames=pickled,
        version=_text(content.get("version")) or "1",
        library=_text(content.get("comm_lib_version") or content.get("nccl_version")),
        configs=dict(_configs(content.get("pg_config"))),
        progress=dict(_progress(content.get("pg_status"))),
        entries=entries,
        rank=next((rank for key in RANKS if (rank := _whole(content.get(key))) is not None and rank >= 0), None),
        unread=unread,
        dropped=dropped,
    )


def _dump_in(content: Any) -> dict[Any, Any]:
    """Return what holds the entries: a dump may be the only value of an object that somebody wrapped it in."""
    if isinstance(content, list):  # the first versions
        return {"version": "0", "entries": content}
    if not isinstance(content, dict):
        raise RefusedError("it holds no dump")
    inner = [each for each in content.values() if isinstance(each, dict) and _is_dump(each)]
    if len(inner) == 1 and not _is_dump(content):
        return {**{key: value for key, value in content.items() if key in RANKS}, **inner[0]}
    if inner and not _is_dump(content):
        raise RefusedError(f"it holds {len(inner)} dumps: write each into a file named after its rank")
    return content


def _is_dump(content: Mapping[Any, Any]) -> bool:
    return any(key in content for key in ("entries", "pg_config", "pg_status"))


def is_json(data: bytes) -> bool:
    """Return whether content begins like JSON, and not like a pickle."""
    return data[:64].lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")


def _read_json(data: bytes) -> Any:
    if data.count(b"[") + data.count(b"{") > MAX_CONTAINERS:
        raise RefusedError(f"it holds more than {MAX_CONTAINERS} lists and objects")
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        pass
    try:
        return json.loads(data)  # Python writes NaN, which is no JSON
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise RefusedError(f"it is no whole JSON ({error})") from error


def _configs(raw: Any) -> Iterator[tuple[str, Config]]:
    if not isinstance(raw, dict):
        return
    for name, config in list(raw.items())[:MAX_GROUPS]:
        if isinstance(name, str | int) and isinstance(config, dict):
            ranks = _members(config.get("ranks"))
            if ranks is not None:
                yield writable(str(name)), Config(description=_text(config.get("desc")), ranks=ranks)


def _members(raw: Any) -> tuple[int, ...] | None:
    if isinstance(raw, str):
        return _members_in(raw)
    try:
        return tuple(msgspec.convert(raw, Members, strict=False))
    except UNFIT:
        return None


@functools.lru_cache(maxsize=SAME_MEMBERS)
def _members_in(text: str) -> tuple[int, ...] | None:
    """Return the members that a text names; all ranks name those of a large group in the same words."""
    if not _RANKS.fullmatch(text):
        return None
    return _members([int(each) for each in re.findall(r"\d+", text) if len(each) < 10])


def _progress(raw: Any) -> Iterator[tuple[int, Progress]]:
    if not isinstance(raw, dict):
        return
    for number, said in list(raw.items())[:MAX_GROUPS]:
        if isinstance(said, dict) and _whole(number) is not None:
            enqueued, started, completed = (_whole(said.get(key)) for key in _PROGRESS)
            # Nothing ever started where the backend does not time its operations.
            started = started if started is not None and started > 0 else None
            yield (
                int(number),
                Progress(
                    enqueued=None if enqueued is None else max(0, enqueued),
                    started=started,
                    completed=None if completed is None else max(0, completed),
                ),
            )


def _whole(raw: Any) -> int | None:
    """Return a number that may be written as text; None for what is none, or nonsense."""
    if isinstance(raw, str) and re.fullmatch(r"-?\d{1,15}", raw):
        raw = int(raw)
    return raw if isinstance(raw, int) and not isinstance(raw, bool) and -1 <= raw <= MAX_NUMBER else None


def _text(raw: Any) -> str:
    return writable(raw[:4096]) if isinstance(raw, str) else str(raw) if isinstance(raw, int | float) else ""
