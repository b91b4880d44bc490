"""What Horovod's stall inspector says: which ranks did not bring which tensors."""

import re
from collections.abc import Iterable

from distdiag.importers._text.facts import Missed, Role, What
from distdiag.importers._text.kinds import BlockFamily
from distdiag.importers._text.normalise import Line

MAX_LINES = 2000
MAX_TENSORS = 32
_LIMIT = re.compile(r"for more than (\d+) seconds")
_STALLED = re.compile(r"(?:(?P<rank>\d+): ?)?\[(?P<tensors>[^\]]*)\]?")


class _Stall:
    """The list of ranks below the warning: ``4: [grad.a, grad.b]`` names what rank 4 did not submit."""

    def __init__(self, line: Line) -> None:
        limit = _LIMIT.search(line.text)
        self._timeout_ms = int(limit[1]) * 1000 if limit else None
        self._tensors: dict[int, tuple[str, ...]] = {}
        self._listing = False
        self._lines = 0

    def feed(self, line: Line) -> bool:
        self._lines += 1
        text = line.text.strip()
        if text.startswith(("Stalled ranks:", "Missing ranks:")):
            self._listing = True
            return True
        if not self._listing:
            return self._lines < 4
        found = _STALLED.match(text)
        # What stands before the bracket looks like the number that a launcher puts before a line.
        rank = None if not found else int(found["rank"]) if found["rank"] else line.task
        if not found or rank is None or self._lines > MAX_LINES:
            return False
        self._tensors[rank] = tuple(name.strip() for name in found["tensors"].split(",")[:MAX_TENSORS])
        return True

    def close(self) -> Iterable[tuple[What, Role]]:
        if self._tensors:
            subjects = tuple(sorted({name for names in self._tensors.values() for name in names}))[:MAX_TENSORS]
            missed = Missed(
                what="all_reduce",
                ranks=tuple(sorted(self._tensors)),
                timeout_ms=self._timeout_ms,
                gave_up=False,
                subjects=subjects,
            )
            yield missed, Role.INITIATING


BLOCKS = (
    BlockFamily(
        name="horovod-stall",
        needles=("One or more tensors were submitted to be reduced",),
        open=_Stall,
    ),
)
