"""Output that a collector has wrapped: JSON lines of containers, and exports of Loki, CloudWatch, Elasticsearch, CSV.

Every message becomes the line that it was, behind its moment and its source as other collectors write them.
"""

import csv
import datetime
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MAX_DOCUMENT_BYTES = 256 << 20
"""An export larger than that is not one document that anybody reads."""
TEXTS = ("log", "message", "line", "msg", "textPayload", "MESSAGE", "@message", "body", "Line")
"""What collectors call a message: docker, fluentd, Loki, zap, Google, journald, CloudWatch, OpenTelemetry, Grafana."""
TIMES = ("time", "timestamp", "@timestamp", "ts", "Time", "date", "__REALTIME_TIMESTAMP", "timeUnixNano")
SOURCES = (
    "pod_name",
    "pod",
    "k8s-pod/pod-name",
    "logStreamName",
    "@logStream",
    "container_name",
    "instance",
    "hostname",
    "host",
    "_HOSTNAME",
)
RANKS = ("rank", "global_rank", "RANK")
"""What loggers call the rank of who speaks."""
HOLDERS = ("kubernetes", "labels", "resource", "fields", "jsonPayload", "_source", "stream", "attributes")
"""What facts may lie in."""
_DOCUMENT = re.compile(rb'\s*(?:\[\s*\{|\{\s*"(?:events|status|data|hits|took|streams|results|entries)"\s*:)')
_LINE = re.compile(rb'\s*\{.*"(?:' + "|".join(map(re.escape, TEXTS)).encode() + rb')"\s*:\s*"')
_LABEL = re.compile(r"[^\w.-]+")
_SECOND_DIGITS = 10
_BARE = re.compile(r"\d{10,19}(?:\.\d+)?")


def wraps(head: bytes) -> bool:
    """Return whether a file's beginning is that of a collector's records."""
    return is_lines(head) or is_document(head) or is_table(head)


def is_lines(head: bytes) -> bool:
    """Return whether each line is a record."""
    return _LINE.match(head.split(b"\n", 1)[0]) is not None


def is_document(head: bytes) -> bool:
    """Return whether all of it is one JSON document with messages in it."""
    return _DOCUMENT.match(head) is not None and any(f'"{name}"'.encode() in head for name in (*TEXTS, "values"))


def is_table(head: bytes) -> bool:
    """Return whether it is CSV with a column of messages, and one of moments."""
    names = _columns(head.split(b"\n", 1)[0])
    return any(name in names for name in TEXTS) and any(name in names for name in TIMES)


def unwrapped(data: bytes) -> Iterator[bytes]:
    """Yield the lines of a whole document or table; nothing of one that is damaged."""
    if is_document(data[: 1 << 16]):
        try:
            yield from _messages(json.loads(data))
        except (ValueError, RecursionError):
            return
    else:
        for row in csv.DictReader(io.StringIO(data.decode(errors="replace"))):
            yield from _record(row)


def unwrapped_line(line: bytes) -> Iterator[bytes]:
    """Yield what one line wraps; the line itself if it wraps nothing."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict) or _text(record) is None:
        yield line
        return
    yield from _record(record)


def _columns(line: bytes) -> Sequence[str]:
    return [name.strip(' "\ufeff\r') for name in line.decode(errors="replace").split(",")]


def _messages(value: Any) -> Iterator[bytes]:
    """Yield the messages of a document, wherever in it they lie."""
    if isinstance(value, list):
        for each in value:
            yield from _messages(each)
    elif isinstance(value, dict):
        if isinstance(value.get("values"), list):
            yield from _stream(value)
        elif _text(value) is not None:
            yield from _record(value)
        else:
            for each in value.values():
                if isinstance(each, dict | list):
                    yield from _messages(each)


def _stream(stream: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the entries of one of Loki's streams: pairs of a moment and a line."""
    source = _source(stream)
    for entry in stream["values"]:
        if isinstance(entry, list) and len(entry) >= 2 and isinstance(entry[1], str):
            yield from _lines(_moment(entry[0]), source, entry[1])


def _record(record: Mapping[str, Any]) -> Iterator[bytes]:
    text = _text(record)
    if text is not None:
        moments = (_moment(value) for name in TIMES if (value := record.get(name)) is not None)
        yield from _lines(next(filter(None, moments), ""), _source(record), text, _rank(record))


def _text(record: Mapping[str, Any]) -> str | None:
    return _first(record, TEXTS)


def _source(record: Mapping[str, Any]) -> str:
    return _LABEL.sub("-", _first(record, SOURCES) or "").strip("-")


def _rank(record: Mapping[str, Any]) -> str:
    """Return the prefix of a rank that a record tells beside its message."""
    holders = (record, *(held for name in HOLDERS if isinstance(held := record.get(name), dict)))
    told = (str(holder[name]) for holder in holders for name in RANKS if name in holder)
    return next((f"[rank{rank}]: " for rank in told if rank.isdecimal()), "")


def _first(record: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """Return the first text that stands under one of some names, in a record or in what it holds."""
    for holder in (record, *(held for name in HOLDERS if isinstance(held := record.get(name), dict))):
        for name in names:
            if isinstance(holder.get(name), str):
                return str(holder[name])
    return None


def _lines(moment: str, source: str, text: str, rank: str = "") -> Iterator[bytes]:
    before = (f"{moment} | " if moment else "") + (f"{source} | " if source else "") + rank
    for line in text.rstrip("\n").split("\n"):
        yield (before + line).encode()


def _moment(value: object) -> str:
    """Return a moment as collectors write it, from the same or from a number of seconds, milliseconds or less."""
    text = str(value)
    if not _BARE.fullmatch(text):
        return text if re.match(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d", text) else ""
    whole = text.partition(".")[0]
    seconds = int(whole) / 10 ** (len(whole) - _SECOND_DIGITS)
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    except (OverflowError, ValueError):
        return ""
