"""Jobs that stop, made by hand: what trained for a while, what then waits, and how a call gives up."""

from pathlib import Path

from distdiag.analyzers import diagnose
from distdiag.findings import Verdict
from tests.logs import Logs, RankLog

STEP = ("train.py:9 main", "train.py:20 step")
SAVE = ("train.py:9 main", "train.py:30 save")
LOG = ("train.py:9 main", "train.py:40 log")
TIMED_OUT = "RuntimeError: Timed out waiting 6000ms for recv operation to complete"
CLOSED = "RuntimeError: Connection closed by peer [127.0.0.1]:1"


def verdict(logs: Logs, directory: Path, *without: int) -> Verdict:
    return diagnose(logs.load(directory, without=without)).verdict


def trained(world_size: int, steps: int = 3) -> Logs:
    logs = Logs(world_size=world_size)
    for rank in logs:
        for _ in range(steps):
            train(rank)
    return logs


def train(rank: RankLog) -> None:
    rank.forwards = rank.backwards = 1
    rank.all_reduce(STEP)
    rank.end_step()


def wait_in(rank: RankLog, call: int, site: tuple[str, ...] = STEP, seconds: float = 30.0) -> None:
    rank.pulses(site, seconds=seconds, waiting=[call])


def fail(rank: RankLog, call: int, error: str = TIMED_OUT, seconds: float = 6.0) -> None:
    """A call that gives up, and the exception that ends the process."""
    rank.done(call, seconds=seconds, error=error)
    kind, _, message = error.partition(": ")
    rank.fault(kind, message, STEP).exit(1)
