"""What launchers of frameworks say of the processes they started: DeepSpeed's, Composer's, Ray's."""

import re
from collections.abc import Iterator

from distdiag.importers._text.facts import Ended, Raised, Remark, Role, Speaker, What
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
)
