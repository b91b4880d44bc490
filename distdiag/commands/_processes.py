"""Training processes on this host, and a look at their stacks from outside."""

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import psutil

from distdiag import events
from distdiag.errors import DistdiagError

RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
"""What launchers tell a process of its rank."""
JOB_VARIABLES = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
"""What tells the ranks of one launch from those of another on the same host."""
LOOK_SECONDS = 30.0
AT_ONCE = 8
"""Processes looked at at the same time."""
NOT_ALLOWED = ("permission denied", "operation not permitted", "eperm")
_HINT = (
    "run it as the same user or as root; else sysctl kernel.yama.ptrace_scope=0, or a container with "
    "--cap-add SYS_PTRACE; recorded ranks write their own stacks when they stall"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process, and the rank its launcher gave it."""

    pid: int
    rank: int | None
    job: str = ""
    """What the ranks of one launch have in common."""

    @property
    def number(self) -> int:
        """Return its rank, or its process id where it has none."""
        return self.pid if self.rank is None else self.rank

    @property
    def name(self) -> str:
        """Return ``rank 3``, or that it has none."""
        return "no rank" if self.rank is None else f"rank {self.rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What could be seen, and why the rest could not."""

    seen: tuple[tuple[Process, tuple[events.ThreadStack, ...]], ...]
    unseen: tuple[tuple[Process, str], ...] = ()


def chosen(pids: Sequence[int]) -> tuple[Process, ...]:
    """Return the processes of these ids.

    Raises ``DistdiagError`` when there is no such process.
    """
    for pid in pids:
        if not psutil.pid_exists(pid):
            raise DistdiagError(f"there is no process {pid}", "list those of a job with: pgrep -af train.py")
    return tuple(_process(pid) for pid in pids)


def ranks_here() -> tuple[Process, ...]:
    """Return the processes on this host that a launcher gave a rank, not what they started themselves.

    Raises ``DistdiagError`` when there are none.
    """
    ranks = {each.pid: each for each in map(_process, psutil.pids()) if each.rank is not None and _is_python(each.pid)}
    found = [each for pid, each in ranks.items() if _parent(pid) not in ranks]
    if not found:
        raise DistdiagError(
            "no process on this host has a rank in its environment",
            "a launcher sets RANK; give processes of another kind with --pid",
        )
    return tuple(sorted(found, key=lambda process: (process.job, process.number, process.pid)))


def look(processes: Sequence[Process], *, native: bool) -> Looked:
    """Return the stacks of processes, taken by py-spy.

    Raises ``DistdiagError`` when none of them could be seen.
    """
    executable = _py_spy()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = list(pool.map(lambda process: _dump(executable, process, native=native), processes))
    seen = [(each, stacks) for each, stacks in zip(processes, results, strict=True) if not isinstance(stacks, str)]
    unseen = [(each, reason) for each, reason in zip(processes, results, strict=True) if isinstance(reason, str)]
    if not seen:
        each, reason = unseen[0]
        raise DistdiagError(f"py-spy cannot read process {each.pid} ({each.name}): {reason}", _HINT)
    return Looked(seen=tuple(seen), unseen=tuple(unseen))


def _dump(executable: str, process: Process, *, native: bool) -> tuple[events.ThreadStack, ...] | str:
    """Return the stacks of a process, or why they cannot be had."""
    from distdiag.importers.stacks import from_json

    command = [executable, "dump", "--json", "--pid", str(process.pid), *(["--native"] if native else [])]
    try:
        done = subprocess.run(command, capture_output=True, timeout=LOOK_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {LOOK_SECONDS:.0f} s"
    dumps = list(from_json(done.stdout))
    if done.returncode or not dumps:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        allowed = not any(words in line.lower() for line in said for words in NOT_ALLOWED)
        return (said[-1] if said else "nothing came") if allowed else "not allowed"
    return tuple(dumps[0].threads)


def _py_spy() -> str:
    beside = os.path.join(sysconfig.get_path("scripts"), "py-spy")
    found = beside if os.access(beside, os.X_OK) else shutil.which("py-spy")
    if found is None:
        raise DistdiagError("py-spy is not there", "install it: pip install py-spy")
    return found


def _process(pid: int) -> Process:
    """Return what the environment of a process tells of it."""
    try:
        environment = psutil.Process(pid).environ()
    except (psutil.Error, OSError):
        return Process(pid=pid, rank=None)
    rank = next((environment[name] for name in RANK_VARIABLES if environment.get(name)), "")
    job = " ".join(environment[name] for name in JOB_VARIABLES if environment.get(name))
    return Process(pid=pid, rank=int(rank) if rank.isdecimal() else None, job=job)


def _parent(pid: int) -> int | None:
    try:
        return psutil.Process(pid).ppid()
    except psutil.Error:
        return None


def _is_python(pid: int) -> bool:
    try:
        return "python" in psutil.Process(pid).exe().rpartition(os.sep)[2].lower()
    except psutil.Error:
        return False
