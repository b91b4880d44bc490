"""What torchrun says of the processes it started: who failed first, whom it closed, and restarts."""

import re
import signal
from collections.abc import Iterable, Iterator

from distdiag.importers._text.facts import Ended, Remark, Restarted, Role, Speaker, Torn, What, role_of
from distdiag.importers._text.kinds import BlockFamily, Family
from distdiag.importers._text.normalise import Line
from distdiag.importers._text.times import stamp_in

MAX_BLOCK_LINES = 4000
"""A thousand failed processes have four lines each; what follows is no failure block any more."""
_FAILED = re.compile(
    r"failed \(exitcode: ?(?P<code>-?\d+)\).*?local_rank: ?(?P<local>\d+)(?:.*?\(pid: ?(?P<pid>\d+)\))?"
)
_CLOSING = re.compile(r"Sending process (?P<pid>\d+) closing signal")
_TOLD = re.compile(
    r"Received (?P<signal>(?:Signals\.)?\w+) death signal|SignalException: Process \d+ got signal: (?P<got>\d+)"
)
_FIELD = re.compile(r"(?:\[\d+\]: *)?(?P<name>time|host|rank|exitcode|error_file|traceback)\s*:\s*(?P<value>.*)$")
_BEGINS = re.compile(r"time\s+: \d{4}-|rank\s+: \d+ \(local_rank: ?\d+\)$")
"""A block may have lost its beginning: it is opened at the first field that is there."""
_RANK = re.compile(r"(?P<rank>\d+) \(local_rank: ?(?P<local>\d+)\)")
_CODE = re.compile(r"(?P<code>-?\d+) \(pid: ?(?P<pid>\d+)\)")


def failed(line: Line) -> Iterator[What]:
    """Read the process that made a torchrun agent give up."""
    found = _FAILED.search(line.text)
    if found:
        pid = int(found["pid"]) if found["pid"] else None
        yield Ended(code=int(found["code"]), local_rank=int(found["local"]), pid=pid)


def closing(line: Line) -> Iterator[What]:
    """Read which process an agent tells to end."""
    found = _CLOSING.search(line.text)
    if found:
        yield Torn(pid=int(found["pid"]))


def told_to_stop(line: Line) -> Iterator[What]:
    """Read with which signal somebody ended the launcher."""
    found = _TOLD.search(line.text)
    if found:
        told = (found["signal"] or found["got"]).removeprefix("Signals.")
        names = {str(each.value): each.name for each in signal.Signals}
        name = names.get(told, f"signal {told}" if told.isdecimal() else told)
        yield Remark(text=f"the launcher was told to stop with {name}", telling=True, stops=True)


def restarted(line: Line) -> Iterator[What]:
    """Read that all processes are started again."""
    del line
    yield Restarted()


class _FailureBlock:
    """The summary that torchrun prints of the processes that failed."""

    def __init__(self, line: Line) -> None:
        self._first = False
        self._fields: dict[str, str] = {}
        self._ended: list[Ended] = []
        self._lines = 0
        self.feed(line)

    def feed(self, line: Line) -> bool:
        self._lines += 1
        text = line.text.strip()
        if "Root Cause" in text:
            self._finish()
            self._first = True
        elif found := _FIELD.match(text):
            if found["name"] in self._fields:
                self._finish()
            self._fields[found["name"]] = found["value"]
        return self._lines < MAX_BLOCK_LINES and _belongs(text)

    def close(self) -> Iterable[tuple[What, Role]]:
        copied = self._fields.get("traceback") == ""  # it follows, in lines of its own
        self._finish()
        said: list[tuple[What, Role]] = [(ended, role_of(ended)) for ended in self._ended]
        last = self._ended[-1].rank if self._ended else None
        return [*said, (Speaker(rank=last), Role.UNKNOWN)] if copied and last is not None else said

    def _finish(self) -> None:
        rank, code = _RANK.search(self._fields.get("rank", "")), _CODE.search(self._fields.get("exitcode", ""))
        if rank and code:
            self._ended.append(
                Ended(
                    code=int(code["code"]),
                    rank=int(rank["rank"]),
                    local_rank=int(rank["local"]),
                    pid=int(code["pid"]),
                    first=self._first,
                    stamp=stamp_in(self._fields.get("time", "")),
                )
            )
        self._fields = {}


def _failure_block(line: Line) -> _FailureBlock | None:
    text = line.text.strip()
    begins = text == "Failures:" or "Root Cause (first" in text or _BEGINS.match(text)
    return _FailureBlock(line) if begins else None


def _belongs(text: str) -> bool:
    """Return whether a line is part of torchrun's summary: fields, rules and headings."""
    if not text or set(text) <= set("=-*") or _FIELD.match(text):
        return True
    return text.startswith(("Failures:", "Root Cause", "<NO_OTHER_FAILURES>", "[", "To enable traceback"))


FAMILIES = (
    Family(
        name="process-failed",
        needles=("failed (exitcode:",),
        role=Role.UNKNOWN,
        parse=failed,
        ending=r"local_rank: ?\d+",
    ),
    Family(name="process-closed", needles=("closing signal",), role=Role.TEARDOWN, parse=closing),
    Family(name="launcher-stopped", needles=("death signal", "got signal: "), role=Role.TEARDOWN, parse=told_to_stop),
    Family(name="restart", needles=("will restart worker group",), role=Role.UNKNOWN, parse=restarted),
)

BLOCKS = (
    BlockFamily(
        name="failure-block",
        needles=("Failures:", "Root Cause (first", "time      : ", "rank      : "),
        open=_failure_block,
    ),
)
