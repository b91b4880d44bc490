"""Where lines go: a terminal, in colour and in its width, or a file."""

import os
import shutil
from collections.abc import Iterable
from typing import TextIO

from distdiag.reporters._lines import Line, plain

FILE_WIDTH = 100
NARROWEST, WIDEST = 60, 120
"""Below it columns make no sense, above it lines are hard to read."""
FILE_HEIGHT = 40
"""A file has no screen; this is the height of a usual one."""


def size(out: TextIO) -> tuple[int, int]:
    """Return the columns and lines to write for."""
    fallback = (FILE_WIDTH, FILE_HEIGHT)
    columns, lines = shutil.get_terminal_size(fallback) if out.isatty() else fallback
    if not out.isatty() and os.environ.get("COLUMNS", "").isdecimal():
        columns = int(os.environ["COLUMNS"])
    return min(max(columns, NARROWEST), WIDEST), lines


def write(lines: Iterable[Line], out: TextIO) -> None:
    """Write ``lines``, in colour if ``out`` is a terminal and NO_COLOR is not set."""
    if not out.isatty() or os.environ.get("NO_COLOR"):
        out.writelines(f"{plain(line)}\n" for line in lines)
        return
    from rich.console import Console  # only a terminal needs it
    from rich.text import Text

    console = Console(file=out, highlight=False, soft_wrap=True)
    for line in lines:
        console.print(Text.assemble(*((span.text, span.style) for span in line)))
