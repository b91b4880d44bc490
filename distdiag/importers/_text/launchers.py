"""What launchers of frameworks say of the processes they started: DeepSpeed's, Composer's, Ray's."""

import re
from collections.abc import Iterator

from distdiag.importers._text.facts import Ended, Raised, Role, What
from distdiag.importers._text.kinds import Family
from distdiag.importers._text.normalise import Line

_DEEPSPEED = re.compile(r"sigkill_handler\].*exits with return code = (?P<code>-?\d+)")
_FIRST_LOCAL = re.compile(r"--local[-_]rank[= ]0\b")
_COMPOSER = re.compile(
    r"composer\.cli\.launcher:(?:Global r|R)ank (?P<rank>\d+) (?:\(PID (?P<pid>\d+)\) )?"
    r"(?:exited|crashed) with (?:exit )?code (?P<code>-?\d+)"
)
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


FAMILIES = (
    Family(name="deepspeed-ended", needles=("exits with return code = ",), role=Role.INITIATING, parse=deepspeed),
    Family(name="composer-ended", needles=("composer.cli.launcher:",), role=Role.UNKNOWN, parse=composer),
    Family(
        name="ray-worker-died",
        needles=("A worker died or was killed",),
        role=Role.INITIATING,
        parse=ray_worker,
    ),
)
