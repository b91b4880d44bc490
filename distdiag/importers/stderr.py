"""What training jobs print: time-outs of watchdogs, errors, ends of processes, of all ranks in one file or many.

Text knows much less than a log of our own: no steps, no calls but those that failed, seldom the members of a group.
What it does not say is left out; no silence is taken for a sign of life.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from distdiag.importers._contract import Imported
from distdiag.importers._text import collectors
from distdiag.importers._text.families import INTERESTING
from distdiag.importers._text.lines import left_out_bytes, wide_encoding
from distdiag.importers._text.moments import clockless, moments_of, ordinary_of
from distdiag.importers._text.owners import owned
from distdiag.importers._text.reader import Transcript, transcribe
from distdiag.importers._text.story import imported

NAME = "stderr"
TAIL_BYTES = 64 << 10
"""What ends a job stands at the end of its output."""
TEXT_SHARE = 0.9
"""Share of bytes that are printable in what is called text; the rest are colours and bars."""

_JSON = re.compile(rb"\s*(?:\{\s*[\"}]|\[\s*[{\]\"])")
_PRINTABLE = bytes(range(32, 127)) + b"\t\r\n\x1b" + bytes(range(128, 256))


def recognises(path: Path, head: bytes) -> bool:
    """Return whether a file is text in whose beginning or end something stands that is understood."""
    wide = wide_encoding(head)
    begins = head if wide is None else _narrow(head, wide)
    if (_JSON.match(begins) and not collectors.wraps(begins)) or not _is_text(begins):
        return False
    tail = _tail(path)
    return bool(INTERESTING.search(begins) or INTERESTING.search(tail if wide is None else _narrow(tail, wide)))


def read(files: Sequence[Path]) -> Iterator[Imported]:
    """Yield what the files tell, by attempt and rank."""
    transcripts: list[Transcript] = []
    notes: list[str] = []
    for file in sorted(files):
        try:
            transcripts.append(transcribe(file, len(transcripts)))
        except OSError as error:
            notes.append(f"{file.name} cannot be read: {error.strerror}")
    told = owned(transcripts)
    bars = [transcript.bar for transcript in transcripts if transcript.bar is not None]
    yield from imported(moments_of(told, transcripts), told, bars, ordinary_of(transcripts))
    notes += _notes(transcripts)
    if notes:
        yield Imported(rank=None, attempt=0, events=(), notes=tuple(notes))


def _notes(transcripts: Sequence[Transcript]) -> Iterator[str]:
    for transcript in transcripts:
        left_out = left_out_bytes(transcript.path)
        if left_out:
            yield f"{left_out >> 20} MiB in the middle of {transcript.path.name} were not read"
        if transcript.overflow:
            yield f"{transcript.overflow} further messages of {transcript.path.name} were left out"
    without = clockless(transcripts)
    if without:
        names = ", ".join(without[:3]) + (" …" if len(without) > 3 else "")
        yield f"no moment stands in {names}: causes are taken to come before what follows from them"


def _narrow(data: bytes, encoding: str) -> bytes:
    return data.decode(encoding, errors="replace").encode()


def _is_text(head: bytes) -> bool:
    sample = head.lstrip(b"\0")  # a log that was truncated under its writer begins with a hole
    return not sample or len(sample.translate(None, _PRINTABLE)) <= (1 - TEXT_SHARE) * len(sample)


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - TAIL_BYTES))
        return file.read(TAIL_BYTES)
