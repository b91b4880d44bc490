"""What NCCL itself prints with ``NCCL_DEBUG=INFO`` or ``WARN``, and its RAS status table."""

import re
from collections.abc import Iterable, Iterator

from distdiag.importers._text.facts import CommunicatorRank, Issued, Missed, Remark, Role, What
from distdiag.importers._text.kinds import BlockFamily, Family
from distdiag.importers._text.names import operation
from distdiag.importers._text.normalise import Line

MAX_TABLE_LINES = 2000
RAS = "collective"
"""What NCCL's RAS counts, whatever its kind."""

_DTYPES = {
    0: "int8",
    1: "uint8",
    2: "int32",
    3: "uint32",
    4: "int64",
    5: "uint64",
    6: "float16",
    7: "float32",
    8: "float64",
    9: "bfloat16",
}
_REDUCTIONS = {0: "SUM", 1: "PRODUCT", 2: "MAX", 3: "MIN", 4: "AVG"}
_ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
_POINT_TO_POINT = frozenset({"send", "recv"})
_OPS = {
    "allgather": "all_gather_into_tensor",
    "reducescatter": "reduce_scatter_tensor",
    "alltoall": "all_to_all_single",
}
"""NCCL's functions work on one buffer, as torch's ``*_tensor`` operations do."""

_PROCESS = r"(?P<process>[\w.-]+:\d+):\d+ \[(?P<device>\d+)\] "
_CALL = re.compile(
    _PROCESS + r"NCCL INFO (?P<op>\w+): opCount (?P<seq>[0-9a-fA-F]+) .*?count (?P<count>\d+) datatype (?P<dtype>\d+)"
    r" op (?P<reduction>-?\d+) root (?P<root>-?\d+) comm (?P<comm>\w+)(?: \[nranks=(?P<size>\d+)\])?"
)
_MADE = re.compile(
    _PROCESS + r"NCCL INFO .*?comm (?P<comm>0x\w+) rank (?P<rank>\d+) n?ranks (?P<size>\d+)"
    r"(?:.*?busId (?P<bus>[0-9a-f]{1,12}))?.*?(?:commId (?P<identity>0x\w+).*?)?Init COMPLETE"
)
_WARNING = re.compile(rf"(?:{_PROCESS})?.*?NCCL WARN (?P<text>.+)")
_COMPLETION = re.compile(r"completion .*?with (?:error|status)[ =](?P<code>\d+)")
_COMPLETIONS = {
    4: "the adapter may not use that memory",
    5: "what was open after an earlier error",
    10: "the other side does not allow that access",
    12: "the other side answered no attempt",
    13: "the other side was never ready",
}
"""What the numbers mean with which work of an adapter ends, as the verbs of InfiniBand have them."""
_TRANSPORT = re.compile(
    r"async event|completion from peer|completion .*error|port error|timeout|link|unhandled system error", re.IGNORECASE
)
_TELLING = re.compile(
    r"mismatch|duplicate gpu|completion from peer|completion .*error|async event|closed by remote peer|failed : "
    r"|timed? ?out|illegal|abort",
    re.IGNORECASE,
)
"""What NCCL does not warn of in jobs that go well."""
_CLOSED = re.compile(r"\[Service thread\] Connection closed by localRank (?P<rank>\d+)")
_LAUNCHED = re.compile(r"[Rr]ank (?P<rank>\d+)\b.*?has launched up to operation (?P<seq>\d+)")
_SEVERAL = re.compile(r"\d+ ranks? ha(?:ve|s) launched up to operation (?P<seq>\d+)")
_LISTED = re.compile(r"\s*[Rr]anks? (?P<rank>\d+)\b")


def call(line: Line) -> Iterator[What]:
    """Read a collective that a process launched; NCCL counts them from 0, in hexadecimal."""
    found = _CALL.search(line.text)
    if not found:
        return
    lowered = found["op"].lower()
    op = _OPS.get(lowered, operation(lowered))
    if op in _POINT_TO_POINT:
        return  # its root is the peer, but nothing says which message it is
    yield Issued(
        op=op,
        seq=int(found["seq"], 16) + 1,
        group=f"{found['process']} {found['comm']}",
        size=int(found["size"]) if found["size"] else None,
        shapes=((int(found["count"]),),),
        dtype=_DTYPES.get(int(found["dtype"])),
        root=int(found["root"]) if op in _ROOTED else None,
        reduce_op=_REDUCTIONS.get(int(found["reduction"])) if "reduce" in op else None,
    )


def made(line: Line) -> Iterator[What]:
    """Read which rank a process has in a communicator."""
    found = _MADE.search(line.text)
    if found:
        yield CommunicatorRank(
            communicator=f"{found['process']} {found['comm']}",
            rank=int(found["rank"]),
            size=int(found["size"]),
            process=found["process"],
            identity=found["identity"] or "",
            bus=int(found["bus"], 16) if found["bus"] else None,
        )


def warning(line: Line) -> Iterator[What]:
    """Read what NCCL warns of; its text goes into the report."""
    found = _WARNING.search(line.text)
    if found:
        kind = "transport warning" if _TRANSPORT.search(found["text"]) else "warning"
        telling = _TELLING.search(found["text"]) is not None
        ended = _COMPLETION.search(found["text"])
        meaning = _COMPLETIONS.get(int(ended["code"][:4])) if ended else None
        text = f"{kind} of NCCL: {found['text'].strip()[:200]}" + (f" ({meaning})" if meaning else "")
        if found["process"]:
            text = f"{text} (on {found['process'].partition(':')[0]}, GPU {found['device']})"
        yield Remark(text=text, telling=telling, process=found["process"] or "")


def closed(line: Line) -> Iterator[What]:
    """Read that a peer on the same host went away."""
    found = _CLOSED.search(line.text)
    if found:
        yield Remark(text=f"NCCL saw the connection to local rank {found['rank']} close")


class _Table:
    """The details below NCCL's table of communicators: how many operations which ranks launched."""

    def __init__(self, line: Line) -> None:
        self._launched: dict[int, int] = {}
        self._most = self._counted = self._lines = 0
        self.feed(line)

    def feed(self, line: Line) -> bool:
        self._lines += 1
        text = line.text
        if found := _LAUNCHED.search(text):
            self._note(int(found["rank"]), int(found["seq"]))
        elif found := _SEVERAL.search(text):
            self._counted = int(found["seq"])
            self._most = max(self._most, self._counted)
        elif found := _LISTED.match(text):
            self._note(int(found["rank"]), self._counted)
        return self._lines < MAX_TABLE_LINES and line.source is None and "Traceback" not in text

    def close(self) -> Iterable[tuple[What, Role]]:
        behind = tuple(sorted(rank for rank, seq in self._launched.items() if seq < self._most))
        if behind:
            yield Missed(what=RAS, ranks=behind, gave_up=False, seq=self._most), Role.INITIATING

    def _note(self, rank: int, seq: int) -> None:
        self._launched[rank] = seq
        self._most = max(self._most, seq)


FAMILIES = (
    Family(name="nccl-call", needles=(": opCount ",), role=Role.UNKNOWN, parse=call),
    Family(name="nccl-communicator", needles=("Init COMPLETE",), role=Role.UNKNOWN, parse=made),
    Family(name="nccl-warning", needles=("NCCL WARN",), role=Role.UNKNOWN, parse=warning),
    Family(name="nccl-peer-closed", needles=("[Service thread] Connection closed",), role=Role.CASCADE, parse=closed),
)

BLOCKS = (BlockFamily(name="nccl-ras-table", needles=("launched up to operation",), open=_Table),)
