"""Lines of styled spans, how text is laid out in them (wrapped, hanging, in columns), and where they are written."""

import os
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TextIO

GAP = 2
"""Spaces between two columns."""
FILE_WIDTH = 100
NARROWEST, WIDEST = 60, 120
"""Below it columns make no sense, above it lines are hard to read."""
FILE_HEIGHT = 40
"""A file has no screen; this is the height of a usual one."""


class Span(NamedTuple):
    """A piece of a line in one style; the names of the styles are rich's."""

    text: str
    style: str = ""


Line = tuple[Span, ...]


BLANK: Line = ()


def plain(line: Line) -> str:
    """Return a line without its styles."""
    return "".join(span.text for span in line).rstrip()


def wrap(text: str, width: int, *, first: int | None = None) -> list[str]:
    """Break ``text`` at spaces, its first line after ``first`` columns; a path that is longer stays whole."""
    lines: list[str] = []
    for paragraph in text.splitlines() or [""]:
        # The place that is missing in the first line is taken by an indent while the text is broken.
        indent = "" if lines or first is None else "x" * (width - first)
        broken = textwrap.wrap(
            paragraph, max(width, 20), initial_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        lines += [broken[0].removeprefix(indent), *broken[1:]] if broken else [""]
    return lines


def hang(label: str, lines: Iterable[str], *, style: str = "") -> list[Line]:
    """Put lines beside ``label``, which stands before the first."""
    return [
        (Span(label, style), Span(line)) if number == 0 else (Span(" " * len(label)), Span(line))
        for number, line in enumerate(lines)
    ]


def hang_all(label: str, texts: Iterable[str], *, indent: int, width: int, numbered: bool = False) -> list[Line]:
    """Hang several texts below one label; the later lines of each stand further in, or behind its number."""
    lines: list[Line] = []
    for number, text in enumerate(texts, start=1):
        mark = f"{number}  " if numbered else ""
        further = " " * (indent + (len(mark) or 2))
        first, *rest = wrap(text, width - len(further))
        lines.append((Span(f"{label:<{indent}}", "bold"), Span(mark, "dim"), Span(first)))
        lines += [(Span(further), Span(line)) for line in rest]
        label = ""
    return lines


def shorten(text: str, width: int) -> str:
    """Cut ``text`` in its middle so that it fits."""
    if len(text) <= width:
        return text
    head = max((width - 2) // 2, 1)
    tail = max(width - 2 - head, 1)
    return f"{text[:head]}..{text[-tail:]}"


def table(rows: Sequence[Sequence[str]], *, indent: int, width: int, styles: Sequence[str]) -> list[Line]:
    """Set ``rows`` in columns, the first row as the heading; the widest columns give way where space is short."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    while sum(widths) + GAP * (len(widths) - 1) + indent > width and max(widths) > len("where"):
        widths[widths.index(max(widths))] -= 1
    lines: list[Line] = []
    for row, style in zip(rows, styles, strict=True):
        cells = (f"{shorten(cell, size):<{size}}" for cell, size in zip(row, widths, strict=True))
        lines.append((Span(" " * indent), Span((" " * GAP).join(cells).rstrip(), style)))
    return lines


def size_of(out: TextIO) -> tuple[int, int]:
    """Return the columns and lines to write for."""
    fallback = (FILE_WIDTH, FILE_HEIGHT)
    columns, lines = shutil.get_terminal_size(fallback) if out.isatty() else fallback
    if not out.isatty() and os.environ.get("COLUMNS", "").isdecimal():
        columns = int(os.environ["COLUMNS"])
    return min(max(columns, NARROWEST), WIDEST), lines


def write_lines(lines: Iterable[Line], out: TextIO) -> None:
    """Write ``lines``, in colour if ``out`` is a terminal and NO_COLOR is not set."""
    if not out.isatty() or os.environ.get("NO_COLOR"):
        out.writelines(f"{plain(line)}\n" for line in lines)
        return
    from rich.console import Console  # only a terminal needs it
    from rich.text import Text

    console = Console(file=out, highlight=False, soft_wrap=True)
    for line in lines:
        console.print(Text.assemble(*((span.text, span.style) for span in line)))
