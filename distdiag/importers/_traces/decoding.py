"""Events of a trace as typed values, whatever is wrong with some of them.

Undamaged text is decoded at once. What is no strict JSON (``NaN``, broken characters) is mended, and of what stays
unreadable every event is tried by itself.
"""

import contextlib
import json
import re
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
    queue: Any = msgspec.field(default=None, name="sycl queue")
    """What traces of Intel's devices have in place of a stream."""
    correlation: Any = None
    device: Any = None
    collective: Any = msgspec.field(default=None, name="Collective name")
    group: Any = msgspec.field(default=None, name="Process Group Name")
    description: Any = msgspec.field(default=None, name="Process Group Description")
    members: Any = msgspec.field(default=None, name="Process Group Ranks")
    size: Any = msgspec.field(default=None, name="Group size")
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


def decode_piece(text: bytes) -> tuple[list[Event], int]:
    """Return the events of a list, and how many could not be read."""
    with contextlib.suppress(*UNREADABLE):
        return _events.decode(text), 0
    with contextlib.suppress(*UNREADABLE):
        return _events.decode(_mended(text)), 0
    read = _one_by_one(text[1:-1])
    return read.events, read.unreadable + read.cut


def decode_ending(head: bytes, tail: bytes) -> Ending:
    """Return what follows the last piece; of text that is cut off its complete events."""
    head = head.removeprefix(_MARK)
    bare = head.strip() == b"["
    opened, closed = (b'{"traceEvents":[', b"}") if bare else (head, b"")
    with contextlib.suppress(*UNREADABLE):
        document = _read_document(opened + tail + closed)
        return Ending(facts=document, events=document.events, whole=True)
    read = _one_by_one(tail)
    with contextlib.suppress(*UNREADABLE):
        facts = _facts.decode(_mended(opened + read.rest + closed))
        return Ending(facts=facts, events=read.events, whole=True, unreadable=read.unreadable)
    facts = Facts()
    with contextlib.suppress(*UNREADABLE):
        facts = _facts.decode(_mended(opened + b"]}"))
    # What ends the text is no damaged event, but the one that was cut.
    return Ending(facts=facts, events=read.events, whole=False, unreadable=read.unreadable)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    events: list[Event]
    unreadable: int
    cut: bool
    """The text ends within an event, or what looks like one."""
    rest: bytes
    """What follows the last event, from the end of the list on."""


def _one_by_one(piece: bytes) -> _Read:
    """Return the events that can be read; what stands between two others and cannot be read is counted."""
    text = piece.decode("utf-8", "replace")
    events: list[Event] = []
    unreadable, cut = 0, False
    place = _after(text, 0)
    while place < len(text) and text[place] != "]":
        try:
            found, end = _lenient.raw_decode(text, place)
            events.append(_event.decode(msgspec.json.encode(found)))
        except UNREADABLE:
            following = _ANOTHER.search(text, place + 1)
            cut = following is None
            unreadable += not cut
            end = following.end() if following else len(text)
        place = _after(text, end)
    return _Read(events=events, unreadable=unreadable, cut=cut, rest=text[place:].encode("utf-8", "replace"))


def _after(text: str, place: int) -> int:
    """Return where the next value begins."""
    found = _BETWEEN.match(text, place)
    return found.end() if found else place
