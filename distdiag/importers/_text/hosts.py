"""What a host says of processes that it ended: the shell that started them, and the kernel."""

import re
from collections.abc import Iterator

from distdiag.importers._text.exit_codes import SIGKILL, SIGNAL_NUMBERS
from distdiag.importers._text.facts import Ended, Remark, Role, What
from distdiag.importers._text.kinds import Family
from distdiag.importers._text.normalise import Line

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
