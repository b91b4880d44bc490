"""What mpirun, MPI and Horovod say of the processes of a job."""

import re
from collections.abc import Iterable, Iterator

from distdiag.importers._text.facts import Ended, Missed, Remark, Role, What, role_of
from distdiag.importers._text.kinds import BlockFamily, Family
from distdiag.importers._text.normalise import Line

_MPIRUN = re.compile(r"process rank (?P<rank>\d+) .*?exited on\s+signal (?P<signal>\d+)")
_ABORT = re.compile(
    r"MPI_ABORT was invoked on rank (?P<rank>\d+) in communicator MPI_COMM_WORLD(?:.* errorcode (?P<code>-?\d+))?"
)
_HYDRA_RANK = re.compile(r"=   RANK (?P<rank>\d+) PID \d+ RUNNING AT \S+")
_HYDRA_END = re.compile(r"=   (?:KILLED BY SIGNAL: (?P<signal>\d+)|EXIT (?:STATUS|CODE): (?P<code>\d+))")
_MPI_NAME = re.compile(r"Process name: \[\[\d+,\d+\],(?P<rank>\d+)\]")
_MPI_CODE = re.compile(r"Exit code: +(?P<code>\d+)")


def mpi_process(line: Line) -> Iterator[What]:
    """Read how a process of mpirun ended."""
    found = _MPIRUN.search(line.text)
    if found:
        yield Ended(code=-int(found["signal"]), rank=int(found["rank"]), first=True)


def peer_lost(line: Line) -> Iterator[What]:
    """Read that Horovod or MPI stopped because another process failed."""
    if "Horovod" in line.text:
        yield Remark(text="Horovod stopped because a rank raised, or ended before the others", telling=True)
    else:
        yield Remark(text="MPI lost its connection to another process, which ended", telling=True)


def aborted(line: Line) -> Iterator[What]:
    """Read which rank of the world called ``MPI_Abort``; a line of an older form tells the code as well."""
    found = _ABORT.search(line.text)
    if found:
        yield Ended(code=int(found["code"] or 1) or 1, rank=int(found["rank"]), first=True)


class _Terminated:
    """What MPICH and Intel's MPI print below ``BAD TERMINATION``: a rank, and a signal or a code."""

    def __init__(self) -> None:
        self._rank: int | None = None
        self._code: int | None = None

    def feed(self, line: Line) -> bool:
        text = line.text.strip()
        if found := _HYDRA_RANK.match(text):
            self._rank = int(found["rank"])
        elif found := _HYDRA_END.match(text):
            self._code = -int(found["signal"]) if found["signal"] else int(found["code"])
        return self._code is None and text.startswith("=")

    def close(self) -> Iterable[tuple[What, Role]]:
        if self._rank is not None and self._code:
            ended = Ended(code=self._code, rank=self._rank, first=True)
            yield ended, role_of(ended)


def _terminated(line: Line) -> _Terminated:
    del line
    return _Terminated()


class _MpiExit:
    """What mpirun prints below ``The first process to do so was``: a name that ends in the rank, and a code."""

    def __init__(self) -> None:
        self._rank: int | None = None
        self._code: int | None = None

    def feed(self, line: Line) -> bool:
        text = line.text.strip()
        if found := _MPI_NAME.match(text):
            self._rank = int(found["rank"])
        elif found := _MPI_CODE.match(text):
            self._code = int(found["code"])
        return self._code is None and (not text or self._rank is not None)

    def close(self) -> Iterable[tuple[What, Role]]:
        if self._rank is not None and self._code:
            ended = Ended(code=self._code, rank=self._rank, first=True)
            yield ended, role_of(ended)


def _mpi_exit(line: Line) -> _MpiExit:
    del line
    return _MpiExit()


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


FAMILIES = (
    Family(name="mpi-aborted", needles=("MPI_ABORT was invoked on rank",), role=Role.INITIATING, parse=aborted),
    Family(
        name="mpi-process-ended",
        needles=("noticed that process rank",),
        role=Role.INITIATING,
        parse=mpi_process,
        ending=r"exited on\s+signal \d+",
    ),
    Family(
        name="mpi-peer-lost",
        needles=("Horovod has been shut down", "MPI communication peer process has unexpectedly disconnected"),
        role=Role.CASCADE,
        parse=peer_lost,
    ),
)


BLOCKS = (
    BlockFamily(name="mpi-first-failure", needles=("The first process to do so was:",), open=_mpi_exit),
    BlockFamily(name="mpi-bad-termination", needles=("BAD TERMINATION OF ONE OF",), open=_terminated),
    BlockFamily(
        name="horovod-stall",
        needles=("One or more tensors were submitted to be reduced",),
        open=_Stall,
    ),
)
