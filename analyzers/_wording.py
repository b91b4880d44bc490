"""Words that several findings share: ranks, times, groups and calls as sentences say them."""

from collections.abc import Iterable

from distdiag.wording import fold as fold  # for the sentences of findings
from distdiag.wording import named as named

SECOND_NS = 1_000_000_000
LONGEST_MESSAGE = 160


def verb(ranks: Iterable[int], one: str, many: str) -> str:
    """Return the form of a verb that fits the number of ranks."""
    return one if len(set(ranks)) == 1 else many


def seconds(duration_ns: float) -> str:
    """Return a duration with as many digits as a reader needs."""
    value = duration_ns / SECOND_NS
    if value < 0.01:
        return f"{value * 1000:.1f} ms"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 100 else f"{value:.0f} s"


def counted(number: int, what: str) -> str:
    """Return ``1 call``, ``3 calls``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def first_line(text: str) -> str:
    """Return what an exception says first, cut where it gets long; a line that only announces is none by itself."""
    lines = [line for line in map(str.strip, text.splitlines()) if line]
    line = lines[0] if lines else text
    if line.endswith(":") and len(lines) > 1:
        line = f"{line} {lines[1]}"
    line = line.rstrip(":.")
    return line if len(line) <= LONGEST_MESSAGE else line[: LONGEST_MESSAGE - 1] + "…"
