"""What faulthandler writes into the output of a process: a fatal signal, and the stacks of all threads."""

import re
from collections.abc import Iterable

from distdiag.importers._text.dumps import BEGINS_FAULT_THREAD, from_text
from distdiag.importers._text.facts import Role, Stacked, What
from distdiag.importers._text.kinds import BlockFamily
from distdiag.importers._text.normalise import Line
from distdiag.run.crashes import SIGNALS

MAX_LINES = 20_000
_FATAL = re.compile(r"Fatal Python error: (?P<reason>[^\n]+)")
_BELONGS = re.compile(r'\s*(?:$|\.\.\.|File ".*", line (?:\d+|\?\?\?) in )')


class _Dump:
    """The threads of one process, the running one first or last."""

    def __init__(self, line: Line) -> None:
        found = _FATAL.search(line.text)
        self._signal = SIGNALS.get(found["reason"].strip()) if found else None
        self._lines = [line.text]

    def feed(self, line: Line) -> bool:
        text = line.text
        belongs = _BELONGS.match(text) or BEGINS_FAULT_THREAD.match(text)
        if not belongs or len(self._lines) >= MAX_LINES:
            return False
        self._lines.append(text)
        return True

    def close(self) -> Iterable[tuple[What, Role]]:
        for dump in from_text(self._lines):
            yield Stacked(threads=tuple(dump.threads), signal=self._signal), Role.UNKNOWN
            return
        if self._signal is not None:
            yield Stacked(threads=(), signal=self._signal), Role.UNKNOWN


def _dump(line: Line) -> _Dump | None:
    begins = _FATAL.match(line.text) or BEGINS_FAULT_THREAD.match(line.text)
    return _Dump(line) if begins else None


BLOCKS = (BlockFamily(name="stacks", needles=("Fatal Python error:", "(most recent call first):"), open=_dump),)
