"""Events of a trace as typed values, whatever is wrong with some of them.

Undamaged text is decoded at once. What is no strict JSON (``NaN``, broken characters) is mended, and of what stays
unreadable every event is tried by itself.
"""

import contextlib
import gc
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

UNREADABLE = (msgspec.MsgspecError, RecursionError, ValueError, OverflowError)
"""What decoders raise; the errors of characters are ``ValueError`` too."""

_BETWEEN = re.compile(r"[\s,]*")
_ANOTHER = re.compile(r'\}\s*,\s*(?=\{\s*")')
_MARK = b"\xef\xbb\xbf"
"""What some editors put before the first character."""


class Arguments(msgspec.Struct, gc=False):
    """The few of an event's arguments that are looked at."""

    stream: Any = None
    correlation: Any = None
    device: Any = None
    collective: Any = msgspec.field(default=None, name="Collective name")
    group: Any = msgspec.field(default=None, name="Process Group Name")
    description: Any = msgspec.field(default=None, name="Process Group Description")
    members: Any = msgspec.field(default=None, name="Process Group Ranks")
    seq: Any = msgspec.field(default=None, name="Seq")


class Event(msgspec.Struct, gc=False):
    """One event; its times are the text that the file holds, because a double cannot hold them."""

    cat: str | None = None
    name: str | None = None
    ts: msgspec.Raw = msgspec.Raw()
    dur: msgspec.Raw = msgspec.Raw()
    args: Arguments | str | float | bool | list[Any] | None = None


class Facts(msgspec.Struct):
    """What a trace says of itself."""

    base_ns: Any = msgspec.field(default=None, name="baseTimeNanoseconds")
    distributed: Any = msgspec.field(default=None, name="distributedInfo")
    roctracer_version: Any = None
    hip_runtime_version: Any = None


class _Document(Facts):
    events: list[Event] = msgspec.field(default_factory=list, name="traceEvents")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The last events of a trace, and what it says of itself."""

    facts: Facts
    events: list[Event]
    whole: bool
    """False where the text ends before the trace does."""
    unreadable: int = 0


_events = msgspec.json.Decoder(list[Event])
_event = msgspec.json.Decoder(Event)
_document = msgspec.json.Decoder(_Document)
_facts = msgspec.json.Decoder(Facts)


@contextlib.contextmanager
def without_collecting() -> Iterator[None]:
    """Leave garbage collection be: nothing here makes cycles, and a million objects take long to look through."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def decode_piece(text: bytes) -> tuple[list[Event], int]:
    """Return the events of a piece, and how many could not be read."""
    whole = b"[" + text + b"]"
    with contextlib.suppress(*UNREADABLE):
        return _events.decode(whole), 0
    with contextlib.suppress(*UNREADABLE):
        return _events.decode(_mended(whole)), 0
    return _one_by_one(text)


def decode_ending(head: bytes, tail: bytes) -> Ending:
    """Return what follows the last piece; of text that is cut off its complete events."""
    head = head.removeprefix(_MARK)
    bare = head.strip() == b"["
    opened, closed = (b'{"traceEvents":[', b"}") if bare else (head, b"")
    with contextlib.suppress(*UNREADABLE):
        document = _read_document(opened + tail + closed)
        return Ending(facts=document, events=document.events, whole=True)
    events, unreadable = _one_by_one(tail)
    facts = Facts()
    with contextlib.suppress(*UNREADABLE):
        facts = Facts() if bare else _facts.decode(_mended(head + b"]}"))
    # What follows the last complete event is the one that was cut.
    return Ending(facts=facts, events=events, whole=False, unreadable=max(0, unreadable - 1))


def _read_document(text: bytes) -> _Document:
    try:
        return _document.decode(text)
    except UNREADABLE:
        return _document.decode(_mended(text))


def _mended(text: bytes) -> bytes:
    """Return the same JSON with null for what no number is, and with readable characters."""
    return msgspec.json.encode(_lenient.decode(text.decode("utf-8", "replace")))


def _as_written(number: str) -> msgspec.Raw:
    return msgspec.Raw(number.encode())


_lenient = json.JSONDecoder(
    strict=False, parse_float=_as_written, parse_int=_as_written, parse_constant=lambda name: None
)


def _one_by_one(piece: bytes) -> tuple[list[Event], int]:
    """Return the events that can be read, and the number of places where something else stands."""
    text = piece.decode("utf-8", "replace")
    events: list[Event] = []
    unreadable = 0
    place = _after(text, 0)
    while place < len(text) and text[place] != "]":
        try:
            found, end = _lenient.raw_decode(text, place)
            events.append(_event.decode(msgspec.json.encode(found)))
        except UNREADABLE:
            unreadable += 1
            following = _ANOTHER.search(text, place + 1)
            end = following.end() if following else len(text)
        place = _after(text, end)
    return events, unreadable


def _after(text: str, place: int) -> int:
    """Return where the next value begins."""
    found = _BETWEEN.match(text, place)
    return found.end() if found else place
