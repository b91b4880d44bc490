"""What training jobs print: time-outs of watchdogs, errors, ends of processes, of all ranks in one file or many.

Text knows much less than a log of our own: no steps, no calls but those that failed, seldom the members of a group.
What it does not say is left out; no silence is taken for a sign of life.
"""

import mmap
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from distdiag.importers._contract import Imported
from distdiag.importers._text import collectors
from distdiag.importers._text.lines import left_out_bytes, wide_encoding
from distdiag.importers._text.moments import clockless, clocks_of, moments_of, ordinary_of
from distdiag.importers._text.owners import owned
from distdiag.importers._text.reader import INTERESTING, Transcript, transcribe
from distdiag.importers._text.story import imported

NAME = "stderr"
TAIL_BYTES = 64 << 10
"""What ends a job stands at the end of its output."""
MOST_BYTES = 192 << 20
"""So much of a file is looked through, from its end, for what says that something failed."""
TEXT_SHARE = 0.9
"""Share of bytes that are printable in what is called text; the rest are colours and bars."""

_JOB = re.compile(r"(?:slurm|job)[-_.](\d{3,})", re.IGNORECASE)
"""What SLURM calls output by default, and what people call it: a job has one number, whatever its hosts."""
_JSON = re.compile(rb"\s*(?:\{\s*[\"}]|\[\s*[{\]\"])")
_LOG = re.compile(r"\.(?:log|out|err)(?:[.-]?\d+)?$|std(?:out|err)", re.IGNORECASE)
_TELLING = (b"Traceback (most recent call last)", b"Watchdog caught collective", b"(exitcode: ", b"NCCL WARN")
"""What hardly any other text holds: ranks that went on may have printed much behind it."""
_PRINTABLE = bytes(range(32, 127)) + b"\t\r\n\x1b" + bytes(range(128, 256))


def recognises(path: Path, head: bytes) -> bool:
    """Return whether a file is text in whose beginning or end something stands that is understood."""
    wide = wide_encoding(head)
    begins = head if wide is None else _narrow(head, wide)
    if (_JSON.match(begins) and not collectors.wraps(begins)) or not _is_text(begins):
        return False
    tail = _tail(path)
    found = INTERESTING.search(begins) or INTERESTING.search(tail if wide is None else _narrow(tail, wide))
    return bool(found) or (_LOG.search(path.name) is not None and _tells_before_its_end(path))


def read(files: Sequence[Path]) -> Iterator[Imported]:
    """Yield what the files tell, by attempt and rank."""
    transcripts: list[Transcript] = []
    notes: list[str] = []
    for file in sorted(files):
        try:
            transcripts.append(transcribe(file, len(transcripts)))
        except OSError as error:
            notes.append(f"{file.name} cannot be read: {error.strerror}")
    transcripts, others = _newest_job(transcripts)
    notes += others
    told = owned(transcripts)
    bars = [transcript.bar for transcript in transcripts if transcript.bar is not None]
    moments = moments_of(told, transcripts)
    yield from imported(moments, told, bars, ordinary_of(transcripts), clocks_of(told, transcripts, moments))
    notes += _notes(transcripts)
    if notes:
        yield Imported(rank=None, attempt=0, events=(), notes=tuple(notes))


def _newest_job(transcripts: list[Transcript]) -> tuple[list[Transcript], list[str]]:
    """Return what the newest of several SLURM jobs printed, where the same ranks speak in several, and a note."""
    jobs: dict[int, list[Transcript]] = {}
    for transcript in transcripts:
        found = _JOB.search(transcript.path.name)
        jobs.setdefault(int(found[1]) if found else 0, []).append(transcript)
    if len(jobs) < 2 or 0 in jobs:
        return transcripts, []
    newest = max(jobs)
    spoke = {
        job: {rank for each in of_job for ranks in each.ranks.values() for rank in ranks}
        for job, of_job in jobs.items()
    }
    former = sorted(job for job in jobs if job != newest and spoke[job] & spoke[newest])
    if not former:
        return transcripts, []
    kept = [each for job in sorted(jobs) if job not in former for each in jobs[job]]
    listed = ", ".join(map(str, former[:3])) + (" …" if len(former) > 3 else "")
    left_out = f"output of job {newest} is read; job{'s' if len(former) > 1 else ''} {listed} had the same ranks before"
    # Things said tell their file by its number.
    return [_renumbered(each, number) for number, each in enumerate(kept)], [left_out]


def _renumbered(transcript: Transcript, number: int) -> Transcript:
    return replace(transcript, said=[replace(said, file=number) for said in transcript.said])


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


def _tells_before_its_end(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if size <= TAIL_BYTES:
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return any(data.find(words, size - MOST_BYTES if size > MOST_BYTES else 0) >= 0 for words in _TELLING)


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
