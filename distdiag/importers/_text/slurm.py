"""What SLURM says of jobs and their tasks: how they ended, and why it ended them."""

import re
from collections.abc import Iterator

from distdiag.importers._text.exit_codes import SIGNAL_NUMBERS
from distdiag.importers._text.facts import Ended, Remark, Role, What
from distdiag.importers._text.kinds import Family
from distdiag.importers._text.normalise import Line

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
        yield Ended(code=code, rank=rank)
    if found["words"] == "Out Of Memory":
        yield Remark(text=f"SLURM says that {found['tasks']} ran out of memory", telling=True)


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


FAMILIES = (
    Family(name="task-ended", needles=("srun: error:",), role=Role.UNKNOWN, parse=task),
    Family(name="node-failed", needles=("Node failure on",), role=Role.INITIATING, parse=node_failed),
    Family(name="cancelled-by-scheduler", needles=(" CANCELLED AT ",), role=Role.TEARDOWN, parse=cancelled),
)
