"""Lines of styled spans, and how text is laid out in them: wrapped, hanging, in columns."""

import textwrap
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Span(NamedTuple):
    """A piece of a line in one style; the names of the styles are rich's."""

    text: str
    style: str = ""


Line = tuple[Span, ...]

BLANK: Line = ()
GAP = 2
"""Spaces between two columns."""


def plain(line: Line) -> str:
    """Return a line without its styles."""
    return "".join(span.text for span in line).rstrip()


def wrap(text: str, width: int) -> list[str]:
    """Break ``text`` at spaces; a path or an address that is longer than ``width`` stays whole."""
    paragraphs = text.splitlines() or [""]
    return [
        line
        for paragraph in paragraphs
        for line in textwrap.wrap(paragraph, max(width, 20), break_long_words=False, break_on_hyphens=False) or [""]
    ]


def hang(label: str, text: str, *, indent: int, width: int, label_style: str = "bold", style: str = "") -> list[Line]:
    """Put ``text`` beside ``label``; its later lines stand below its first."""
    first, *rest = wrap(text, width - indent)
    lines: list[Line] = [(Span(f"{label:<{indent}}", label_style), Span(first, style))]
    return lines + [(Span(" " * indent), Span(line, style)) for line in rest]


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
