"""What launchers say of the processes they started: exit codes, signals, who failed first, and restarts."""

import re
import signal
from collections.abc import Iterable, Iterator

from distdiag.importers._text.facts import Ended, Raised, Remark, Restarted, Role, Speaker, Torn, What
from distdiag.importers._text.kinds import BlockFamily, Family
from distdiag.importers._text.normalise import Line
from distdiag.importers._text.times import stamp_in

SIGTERM = 15
SIGKILL = 9
MAX_BLOCK_LINES = 4000
"""A thousand failed processes have four lines each; what follows is no failure block any more."""

_SIGNAL_NUMBERS = {
    "Killed": SIGKILL,
    "Terminated": SIGTERM,
    "Aborted": 6,
    "Bus error": 7,
    "Segmentation fault": 11,
    "Out Of Memory": SIGKILL,
}
_FAILED = re.compile(
    r"failed \(exitcode: ?(?P<code>-?\d+)\).*?local_rank: ?(?P<local>\d+)(?:.*?\(pid: ?(?P<pid>\d+)\))?"
)
_DEEPSPEED = re.compile(r"sigkill_handler\].*exits with return code = (?P<code>-?\d+)")
_FIRST_LOCAL = re.compile(r"--local[-_]rank[= ]0\b")
_SCHEDULER = re.compile(
    r"(?P<kind>JOB|STEP) (?P<job>[\w.+-]+) ON \S+ CANCELLED AT (?P<moment>[\dT:-]+)(?: DUE TO (?P<reason>[A-Z ]+))?"
)
_TOLD = re.compile(r"Received (?P<signal>\d+) death signal|SignalException: Process \d+ got signal: (?P<got>\d+)")
_RAY = re.compile(r"A worker died or was killed .*?Worker PID: (?P<pid>\d+)")
_CLOSING = re.compile(r"Sending process (?P<pid>\d+) closing signal")
_FIELD = re.compile(r"(?:\[\d+\]: *)?(?P<name>time|host|rank|exitcode|error_file|traceback)\s*:\s*(?P<value>.*)$")
_BEGINS = re.compile(r"time\s+: \d{4}-|rank\s+: \d+ \(local_rank: ?\d+\)$")
"""A block may have lost its beginning: it is opened at the first field that is there."""
_RANK = re.compile(r"(?P<rank>\d+) \(local_rank: ?(?P<local>\d+)\)")
_CODE = re.compile(r"(?P<code>-?\d+) \(pid: ?(?P<pid>\d+)\)")
_TASK = re.compile(
    r"srun: error: [\w.-]+: tasks? (?P<tasks>[\d,-]+): (?:(?P<words>Killed|Terminated|Aborted|Bus error|"
    r"Segmentation fault|Out Of Memory)|Exited with exit code (?P<code>\d+))"
)
_MPIRUN = re.compile(r"process rank (?P<rank>\d+) .*?exited on\s+signal (?P<signal>\d+)")
_MPI_NAME = re.compile(r"Process name: \[\[\d+,\d+\],(?P<rank>\d+)\]")
_MPI_CODE = re.compile(r"Exit code: +(?P<code>\d+)")
_COMPOSER = re.compile(
    r"composer\.cli\.launcher:(?:Global r|R)ank (?P<rank>\d+) (?:\(PID (?P<pid>\d+)\) )?"
    r"(?:exited|crashed) with (?:exit )?code (?P<code>-?\d+)"
)
_SHELL = re.compile(
    r": line \d+: +(?P<pid>\d+) (?P<words>Killed|Aborted|Bus error|Segmentation fault) +(?:\(core dumped\) )?\S"
)
_KERNEL = re.compile(r"Out of memory: Killed process (?P<pid>\d+)")
_STEP = re.compile(r"Detected \d+ oom[-_]kill event")


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


def deepspeed(line: Line) -> Iterator[What]:
    """Read the code with which a process of DeepSpeed's launcher ended.

    The command beside it is that of the last process it started, whichever ended; only one process is the first too.
    """
    found = _DEEPSPEED.search(line.text)
    if found:
        yield Ended(code=int(found["code"]), local_rank=0 if _FIRST_LOCAL.search(line.text) else None)


def cancelled(line: Line) -> Iterator[What]:
    """Read that SLURM ended a job."""
    found = _SCHEDULER.search(line.text)
    if found:
        reason = (found["reason"] or "").strip().lower()
        because = f" because of {reason}" if reason else ": somebody, or another job's rule, cancelled it"
        what = "job" if found["kind"] == "JOB" else "step"
        yield Remark(text=f"SLURM ended {what} {found['job']} at {found['moment']}{because}", telling=True)


def composer(line: Line) -> Iterator[What]:
    """Read how a process of Composer's launcher ended."""
    found = _COMPOSER.search(line.text)
    if found:
        yield Ended(code=int(found["code"]), rank=int(found["rank"]), pid=int(found["pid"]) if found["pid"] else None)


def shell(line: Line) -> Iterator[What]:
    """Read what a shell says of a command that a signal ended."""
    found = _SHELL.search(line.text)
    if found:
        yield Ended(code=-_SIGNAL_NUMBERS[found["words"]], pid=int(found["pid"]))


def told_to_stop(line: Line) -> Iterator[What]:
    """Read with which signal somebody ended the launcher."""
    found = _TOLD.search(line.text)
    if found:
        number = int(found["signal"] or found["got"])
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        yield Remark(text=f"the launcher was told to stop with {name}", telling=True)


def ray_worker(line: Line) -> Iterator[What]:
    """Read that Ray lost a worker's process."""
    found = _RAY.search(line.text)
    if found:
        pid = int(found["pid"])
        message = f"worker process {pid} died without a word: killed (often for memory), stopped by force, or crashed"
        yield Raised(type="WorkerDied", message=message, uncaught=True, pid=pid)


def task(line: Line) -> Iterator[What]:
    """Read how tasks of SLURM ended."""
    found = _TASK.search(line.text)
    if not found:
        return
    code = int(found["code"]) if found["code"] else -_SIGNAL_NUMBERS[found["words"]]
    for rank in _ranks_in(found["tasks"]):
        yield Ended(code=code, rank=rank)
    if found["words"] == "Out Of Memory":
        yield Remark(text=f"SLURM says that {found['tasks']} ran out of memory", telling=True)


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


def kernel(line: Line) -> Iterator[What]:
    """Read what the kernel or SLURM says of memory that ran out."""
    found = _KERNEL.search(line.text)
    if found:
        yield Ended(code=-SIGKILL, pid=int(found["pid"]))
        yield Remark(text=f"the kernel killed process {found['pid']} because the host ran out of memory", telling=True)
    elif _STEP.search(line.text):
        yield Remark(
            text="SLURM counted processes that were killed because their memory limit was reached", telling=True
        )


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


def _failure_block(line: Line) -> _FailureBlock | None:
    text = line.text.strip()
    begins = text == "Failures:" or "Root Cause (first" in text or _BEGINS.match(text)
    return _FailureBlock(line) if begins else None


def role_of(ended: Ended) -> Role:
    """Return whether an end may be the beginning: who was told to end is a victim."""
    return Role.TEARDOWN if ended.code in (-SIGTERM, 128 + SIGTERM) else Role.INITIATING


def _belongs(text: str) -> bool:
    """Return whether a line is part of torchrun's summary: fields, rules and headings."""
    if not text or set(text) <= set("=-*") or _FIELD.match(text):
        return True
    return text.startswith(("Failures:", "Root Cause", "<NO_OTHER_FAILURES>", "[", "To enable traceback"))


def _ranks_in(text: str) -> Iterator[int]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (not last or last.isdecimal()):
            yield from range(int(first), min(int(last or first), int(first) + MAX_BLOCK_LINES) + 1)


FAMILIES = (
    Family(
        name="process-failed",
        needles=("failed (exitcode:",),
        role=Role.UNKNOWN,
        parse=failed,
        ending=r"local_rank: ?\d+",
    ),
    Family(name="process-closed", needles=("closing signal",), role=Role.TEARDOWN, parse=closing),
    Family(name="task-ended", needles=("srun: error:",), role=Role.UNKNOWN, parse=task),
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
    Family(
        name="host-out-of-memory",
        needles=("Out of memory: Killed process", "oom_kill event", "oom-kill event"),
        role=Role.INITIATING,
        parse=kernel,
    ),
    Family(name="deepspeed-ended", needles=("exits with return code = ",), role=Role.INITIATING, parse=deepspeed),
    Family(name="composer-ended", needles=("composer.cli.launcher:",), role=Role.UNKNOWN, parse=composer),
    Family(
        name="shell-ended",
        needles=(" Killed  ", " Aborted  ", " Bus error  ", " Segmentation fault  ", "(core dumped)"),
        role=Role.INITIATING,
        parse=shell,
    ),
    Family(name="cancelled-by-scheduler", needles=(" CANCELLED AT ",), role=Role.TEARDOWN, parse=cancelled),
    Family(name="launcher-stopped", needles=("death signal", "got signal: "), role=Role.TEARDOWN, parse=told_to_stop),
    Family(
        name="ray-worker-died",
        needles=("A worker died or was killed",),
        role=Role.INITIATING,
        parse=ray_worker,
    ),
    Family(name="restart", needles=("will restart worker group",), role=Role.UNKNOWN, parse=restarted),
)

BLOCKS = (
    BlockFamily(name="mpi-first-failure", needles=("The first process to do so was:",), open=_mpi_exit),
    BlockFamily(
        name="failure-block",
        needles=("Failures:", "Root Cause (first", "time      : ", "rank      : "),
        open=_failure_block,
    ),
)
