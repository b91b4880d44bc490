"""What c10d's desync debugging says when a collective timed out: which ranks lag, and where all ranks were last.

Its numbers count collectives from 1, and its ranks are those of the group whose watchdog speaks.
"""

import re
from collections.abc import Iterable

from distdiag.importers._text.facts import Missed, Remark, Role, What
from distdiag.importers._text.kinds import BlockFamily
from distdiag.importers._text.names import operation
from distdiag.importers._text.normalise import Line
from distdiag.wording import named

MAX_LINES = 200
_RANKS = r"\[(?P<ranks>\d+(?:, ?\d+)*)\]"
_NEVER = re.compile(rf"ranks {_RANKS} are the lagging ranks that caused this timeout")
_BEHIND = re.compile(rf"{_RANKS} finished collective #\d+, but didn't join collective #(?P<seq>\d+)")
_STUCK = re.compile(rf"{_RANKS} joined but didn't finish collective #(?P<seq>\d+)")
_STEP = re.compile(r"#(?P<seq>\d+) (?P<edge>started|finished) ranks:")
_STATE = re.compile(rf"{_RANKS} started (?P<op>\w+)")
_ANY = "collective"
"""What is missed where the report does not say: ranks that never joined anything."""


class _Report:
    """The lines of one report, which end with a snapshot of the ranks' latest states."""

    def __init__(self, line: Line) -> None:
        self._missed: tuple[tuple[int, ...], int] | None = None
        self._stuck: tuple[tuple[int, ...], int] | None = None
        self._ops: dict[int, str] = {}
        self._started = 0
        self._lines = 0
        self.feed(line)

    def feed(self, line: Line) -> bool:
        self._lines += 1
        text = line.text
        if found := _NEVER.search(text):
            self._missed = _ranks(found), 1
        elif found := _BEHIND.search(text):
            self._missed = _ranks(found), int(found["seq"])
        elif found := _STUCK.search(text):
            self._stuck = _ranks(found), int(found["seq"])
        elif found := _STEP.search(text):
            self._started = int(found["seq"]) if found["edge"] == "started" else 0
        elif self._started and (found := _STATE.search(text)):
            self._ops.setdefault(self._started, operation(found["op"]))
        return self._lines < MAX_LINES and "Traceback" not in text

    def close(self) -> Iterable[tuple[What, Role]]:
        if self._missed is not None:
            ranks, seq = self._missed
            yield Missed(what=self._ops.get(seq, _ANY), ranks=ranks, seq=seq), Role.INITIATING
        if self._stuck is not None:
            ranks, seq = self._stuck
            yield Remark(text=f"c10d says that {named(ranks)} began collective {seq} and did not end it"), Role.UNKNOWN


def _ranks(found: re.Match[str]) -> tuple[int, ...]:
    return tuple(int(rank) for rank in found["ranks"].split(","))


BLOCKS = (BlockFamily(name="c10d-desync", needles=("To our best knowledge",), open=_Report),)
