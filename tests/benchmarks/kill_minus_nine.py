"""Kill ranks with SIGKILL at random moments and look for collectives that their logs lack.

``python tests/benchmarks/kill_minus_nine.py [--kills 100]`` starts two real gloo ranks that reduce in a loop,
kills one, and compares the logs with what the ranks noted themselves, independently of distdiag: a rank that
returned from collective n entered it, and so did its peer, for none returns before both have entered.
"""

import argparse
import contextlib
import itertools
import mmap
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
import torch.distributed as dist

import distdiag
from distdiag import events
from distdiag.journal import read_lines, segments_of

RANKS = 2
LONGEST_LIFE_SECONDS = 0.8
MAX_BYTES = 256 << 10
"""A small cap makes small segments, so that ranks also die while a segment begins and while old ones go."""
CAP_SECONDS = 20


@dataclass(slots=True)
class Totals:
    """What all kills together showed."""

    kills: int = 0
    collectives: int = 0
    lost: int = 0
    unreadable: int = 0
    torn: int = 0
    segments: int = 0


class Counter:
    """A number in a memory map of its own: the witness that distdiag has no part in."""

    def __init__(self, path: Path) -> None:
        path.touch()
        os.truncate(path, 8)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8)

    @property
    def value(self) -> int:
        """The number."""
        return int.from_bytes(self._map[:], "little")

    @value.setter
    def value(self, number: int) -> None:
        self._map[:] = number.to_bytes(8, "little")


def work(rank: int, directory: Path) -> None:
    """Reduce until something ends it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the peer's death is loud
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), str(RANKS)
    counter = Counter(directory / f"returned{rank}")
    distdiag.install(directory / "logs", max_bytes=MAX_BYTES)
    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=RANKS)
    tensor = torch.ones(16)
    number = 0
    with contextlib.suppress(RuntimeError):
        while True:
            number += 1
            dist.all_reduce(tensor)
            counter.value = number
    distdiag.uninstall()
    os._exit(0)


def kill_one(directory: Path, totals: Totals) -> None:
    """Start the ranks, kill one, and add what the logs hold to the totals."""
    counters = [Counter(directory / f"returned{rank}") for rank in range(RANKS)]
    # Forked from a process that has torch already: importing it 200 times would take most of the time.
    processes: list[BaseProcess] = [
        multiprocessing.get_context("fork").Process(target=work, args=(rank, directory)) for rank in range(RANKS)
    ]
    for process in processes:
        process.start()
    deadline = time.monotonic() + CAP_SECONDS
    while not all(counter.value for counter in counters) and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(random.uniform(0, LONGEST_LIFE_SECONDS))
    random.choice(processes).kill()
    for process in processes:
        process.join(CAP_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
    entered = max(counter.value for counter in counters)
    for log in segments_of(directory / "logs"):
        totals.segments += len(log.files)
        totals.lost += max(0, entered - reduces_in(log.files, totals))
    totals.kills += 1
    totals.collectives += entered * RANKS


def reduces_in(files: tuple[Path, ...], totals: Totals) -> int:
    """Read a log strictly and return how many all_reduce calls it holds, or says it dropped, without a gap."""
    reduces: set[int] = set()
    others: set[int] = set()
    signatures: dict[int, str] = {}
    for record in records_in(files, totals):
        if isinstance(record, events.Dropped) and record.calls:
            reduces.update(range(record.calls[0], record.calls[1] + 1))
        elif isinstance(record, events.Signature):
            signatures[record.signature] = record.op
        elif isinstance(record, events.Call):
            # A signature is written again where its first call in a new segment has just been written.
            (reduces if signatures.get(record.signature, "all_reduce") == "all_reduce" else others).add(record.call)
    last = next(number for number in itertools.count(1) if number not in reduces | others)
    return len([number for number in reduces if number < last])


def records_in(files: tuple[Path, ...], totals: Totals) -> Iterator[events.Record]:
    """Yield all records, counting what is torn or unreadable."""
    for file in files:
        totals.torn += not file.read_bytes().split(b"\0")[0].endswith(b"\n")
        for line in read_lines(file):
            try:
                yield events.decode(line)
            except ValueError:
                totals.unreadable += 1


def main() -> int:
    """Run the kills and print what was lost; 1 if anything was."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    kills: int = parser.parse_args().kills
    totals = Totals()
    for _ in range(kills):
        with tempfile.TemporaryDirectory(prefix="distdiag-kill-") as name:
            kill_one(Path(name), totals)
    sys.stdout.write(
        f"{totals.kills} kills, {totals.collectives} collectives entered, {totals.lost} lost, "
        f"{totals.unreadable} unreadable lines, {totals.torn} torn last lines, {totals.segments} segments\n"
    )
    return 1 if totals.lost or totals.unreadable or not totals.collectives else 0


if __name__ == "__main__":
    sys.exit(main())
