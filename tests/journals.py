"""Builders for tests of the journal."""

from collections.abc import Callable
from pathlib import Path

from distdiag.journal import Journal, read_lines, segments_of


def header_line(segment: int) -> bytes:
    """Return a header as short as tests like it."""
    return b'{"kind":"header","segment":%d}\n' % segment


def call_line(call: int, padding: int = 0) -> bytes:
    """Return a record of a kind that the cap may drop."""
    return b'{"kind":"call","call":%d,"phase":"%s"}\n' % (call, b"x" * padding)


def step_line(step: int) -> bytes:
    """Return a record of a kind that stays."""
    return b'{"kind":"step","step":%d}\n' % step


def open_journal(
    directory: Path,
    *,
    stem: str = "rank00000",
    attempt: int | None = None,
    header: Callable[[int], bytes] = header_line,
    segment_bytes: int = 4096,
    max_bytes: int = 256 << 20,
) -> Journal:
    """Return a journal with small segments."""
    return Journal(
        directory, stem=stem, attempt=attempt, header=header, segment_bytes=segment_bytes, max_bytes=max_bytes
    )


def lines_in(directory: Path) -> list[bytes]:
    """Return all lines of the only log in a directory, in order."""
    (log,) = segments_of(directory)
    return [line for file in log.files for line in read_lines(file)]


def records_in(directory: Path) -> list[bytes]:
    """Return the lines of the only log in a directory without the headers."""
    return [line for line in lines_in(directory) if not line.startswith(b'{"kind":"header"')]


def disk_bytes(directory: Path) -> int:
    """Return what all files of a directory take, hidden ones too."""
    return sum(path.stat().st_size for path in directory.iterdir())
