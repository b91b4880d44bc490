"""What launchers, SLURM, Kubernetes, shells and the kernel say of the processes they started, or ended."""

import re
from collections.abc import Iterator

from distdiag.importers._text.facts import SIGKILL, SIGNAL_NUMBERS, Ended, Raised, Remark, Role, Speaker, What
from distdiag.importers._text.kinds import Family
from distdiag.importers._text.normalise import Line

_DEEPSPEED = re.compile(r"sigkill_handler\].*exits with return code = (?P<code>-?\d+)")
_FIRST_LOCAL = re.compile(r"--local[-_]rank[= ]0\b")
_COMPOSER = re.compile(
    r"composer\.cli\.launcher:(?:Global r|R)ank (?P<rank>\d+) (?:\(PID (?P<pid>\d+)\) )?"
    r"(?:exited|crashed) with (?:exit )?code (?P<code>-?\d+)"
)
_SECTION = re.compile(r"-{4,}Begin global rank (?P<rank>\d+) STDERR-{4,}")
_LIGHTNING = re.compile(r"Child process with PID (?P<pid>\d+) terminated with code (?P<code>-?\d+)\.")
_VLLM = re.compile(r"Worker proc (?P<name>VllmWorker-(?P<rank>\d+)) died unexpectedly")
_VLLM_CALL = re.compile(r"RPC call to \w+ timed out")
_RAYLET = re.compile(r"Raylet is terminated\. (?:Termination is unexpected|.*[Uu]nexpected)")
_RAY = re.compile(r"A worker died or was killed .*?Worker PID: (?P<pid>\d+)")


def deepspeed(line: Line) -> Iterator[What]:
    """Read the code with which a process of DeepSpeed's launcher ended.

    The command beside it is that of the last process it started, whichever ended; only one process is the first too.
    """
    found = _DEEPSPEED.search(line.text)
    if found:
        yield Ended(code=int(found["code"]), local_rank=0 if _FIRST_LOCAL.search(line.text) else None)


def composer(line: Line) -> Iterator[What]:
    """Read how a process of Composer's launcher ended."""
    found = _COMPOSER.search(line.text)
    if found:
        yield Ended(code=int(found["code"]), rank=int(found["rank"]), pid=int(found["pid"]) if found["pid"] else None)


def ray_worker(line: Line) -> Iterator[What]:
    """Read that Ray lost a worker's process."""
    found = _RAY.search(line.text)
    if found:
        pid = int(found["pid"])
        message = f"worker process {pid} died without a word: killed (often for memory), stopped by force, or crashed"
        yield Raised(type="WorkerDied", message=message, uncaught=True, pid=pid)


def lightning(line: Line) -> Iterator[What]:
    """Read how a process of Lightning's launcher ended; it writes the rank before it."""
    found = _LIGHTNING.search(line.text)
    if found:
        yield Ended(code=int(found["code"]), rank=line.rank, pid=int(found["pid"]), first=True)


def vllm(line: Line) -> Iterator[What]:
    """Read which worker of vLLM's died, or that its engine gave up on all of them."""
    if found := _VLLM.search(line.text):
        message = f"worker process {found['name']} died without a word: killed (often for memory), or crashed"
        yield Raised(type="WorkerDied", message=message, uncaught=True, rank=int(found["rank"]))
    elif found := _VLLM_CALL.search(line.text):
        yield Remark(text=f"vLLM's engine waited in vain for its workers: {found[0]}", telling=True)


def raylet(line: Line) -> Iterator[What]:
    """Read that the process that runs Ray's workers on a host ended, and they with it."""
    if _RAYLET.search(line.text):
        yield Remark(text="the raylet of a host ended, which ends all its workers", telling=True, stops=True)


def section(line: Line) -> Iterator[What]:
    """Read whose output Composer copies below."""
    found = _SECTION.search(line.text)
    if found:
        yield Speaker(rank=int(found["rank"]))


MAX_TASKS = 4000
"""A range of tasks is read so far: a line that speaks of more was misread."""
_TASK = re.compile(
    r"srun: error: [\w.-]+: tasks? (?P<tasks>[\d,-]+): (?:(?P<words>Killed|Terminated|Aborted|Bus error|"
    r"Segmentation fault|Out Of Memory)|Exited with exit code (?P<code>\d+))"
)
_NODE = re.compile(r"srun: error: Node failure on (?P<node>[\w.-]+)")
_SCHEDULER = re.compile(
    r"(?P<kind>JOB|STEP) (?P<job>[\w.+-]+) ON \S+ CANCELLED AT (?P<moment>[\dT:-]+)(?: DUE TO (?P<reason>[A-Z ]+))?"
)


def task(line: Line) -> Iterator[What]:
    """Read how tasks of SLURM ended."""
    found = _TASK.search(line.text)
    if not found:
        return
    code = int(found["code"]) if found["code"] else -SIGNAL_NUMBERS[found["words"]]
    for rank in _ranks_in(found["tasks"]):
        yield Ended(code=code, task=rank)
    if found["words"] == "Out Of Memory":
        yield Remark(text=f"SLURM says that task {found['tasks']} ran out of memory", telling=True)


def cancelled(line: Line) -> Iterator[What]:
    """Read that SLURM ended a job."""
    found = _SCHEDULER.search(line.text)
    if found:
        reason = (found["reason"] or "").strip().lower()
        because = f" because of {reason}" if reason else ": somebody, or another job's rule, cancelled it"
        what = "job" if found["kind"] == "JOB" else "step"
        text = f"SLURM ended {what} {found['job']} at {found['moment']}{because}"
        # Without a reason it may be what follows upon the end of a task.
        yield Remark(text=text, telling=True, stops=bool(reason))


def node_failed(line: Line) -> Iterator[What]:
    """Read that a host failed, and with it all that ran there."""
    found = _NODE.search(line.text)
    if found:
        yield Remark(text=f"SLURM says that node {found['node']} failed", telling=True, stops=True)


def _ranks_in(text: str) -> Iterator[int]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (not last or last.isdecimal()):
            yield from range(int(first), min(int(last or first), int(first) + MAX_TASKS) + 1)


_SHELL = re.compile(
    r": line \d+: +(?P<pid>\d+) (?P<words>Killed|Aborted|Bus error|Segmentation fault) +(?:\(core dumped\) )?\S"
)
_KERNEL = re.compile(r"[Oo]ut of memory: Killed process (?P<pid>\d+)")
_LOW = re.compile(r"The node was low on resource: (?P<what>[\w-]+)")
_CONTAINER = re.compile(r"(?:Reason|reason)\W+OOMKilled\b|\bOOMKilled\s+\d")
_STEP = re.compile(r"Detected \d+ oom[-_]kill event")


def shell(line: Line) -> Iterator[What]:
    """Read what a shell says of a command that a signal ended."""
    found = _SHELL.search(line.text)
    if found:
        yield Ended(code=-SIGNAL_NUMBERS[found["words"]], pid=int(found["pid"]))


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


def kubernetes(line: Line) -> Iterator[What]:
    """Read why Kubernetes ended a container."""
    if found := _LOW.search(line.text):
        yield Remark(text=f"Kubernetes evicted a pod: its node was low on {found['what']}", telling=True)
    elif _CONTAINER.search(line.text):
        yield Remark(text="Kubernetes killed a container because its memory limit was reached", telling=True)


FAMILIES = (
    Family(name="lightning-ended", needles=("Child process with PID",), role=Role.INITIATING, parse=lightning),
    Family(name="vllm-worker-died", needles=("died unexpectedly, shutting down",), role=Role.INITIATING, parse=vllm),
    Family(name="vllm-call", needles=("RPC call to ",), role=Role.CASCADE, parse=vllm),
    Family(name="raylet-ended", needles=("Raylet is terminated",), role=Role.INITIATING, parse=raylet),
    Family(name="composer-section", needles=("Begin global rank ",), role=Role.UNKNOWN, parse=section),
    Family(name="deepspeed-ended", needles=("exits with return code = ",), role=Role.INITIATING, parse=deepspeed),
    Family(name="composer-ended", needles=("composer.cli.launcher:",), role=Role.UNKNOWN, parse=composer),
    Family(
        name="ray-worker-died",
        needles=("A worker died or was killed",),
        role=Role.INITIATING,
        parse=ray_worker,
    ),
    Family(name="task-ended", needles=("srun: error:",), role=Role.UNKNOWN, parse=task),
    Family(name="node-failed", needles=("Node failure on",), role=Role.INITIATING, parse=node_failed),
    Family(name="cancelled-by-scheduler", needles=(" CANCELLED AT ",), role=Role.TEARDOWN, parse=cancelled),
    Family(
        name="kubernetes-ended",
        needles=("The node was low on resource", "OOMKilled"),
        role=Role.INITIATING,
        parse=kubernetes,
    ),
    Family(
        name="host-out-of-memory",
        needles=("ut of memory: Killed process", "oom_kill event", "oom-kill event"),
        role=Role.INITIATING,
        parse=kernel,
    ),
    Family(
        name="shell-ended",
        needles=(" Killed  ", " Aborted  ", " Bus error  ", " Segmentation fault  ", "(core dumped)"),
        role=Role.INITIATING,
        parse=shell,
    ),
)
