"""What benchmarks that do one thing many times share: a limit of time, what was found so far, and a table of it.

A directory holds ``results.jsonl`` with a line for each run, and what was kept of single runs. Whoever gives the same
directory again goes on where the last one stopped.
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

RESULTS = "results.jsonl"
RIGHT = "right"
"""The answer of which no logs are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one run of one program came to."""

    program: str
    run: int
    answer: str
    """A column of the table."""
    why: str = ""
    seconds: float | None = None
    """How long the answer took, where that counts."""


class Answer(NamedTuple):
    """What a run is worth, and why; how long it took, where that counts."""

    answer: str
    why: str = ""
    seconds: float | None = None


class Repetition:
    """Runs that are done, in a directory, and the time that is left for more."""

    def __init__(self, directory: Path, minutes: float | None) -> None:
        self.directory = directory
        self._until = None if minutes is None else time.monotonic() + 60 * minutes
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / RESULTS
        lines = file.read_text().splitlines() if file.exists() else []
        self.results = [Result(**json.loads(line)) for line in lines]

    def go_on(self, runs: Mapping[str, int], one: Callable[[str, Path], Answer], *, at_a_time: int) -> None:
        """Run what is still to be run of so many runs of each program, the first of all before the second of any.

        ``one`` runs a program in a directory that is still to be made, and judges it.
        """
        pool = ThreadPoolExecutor(at_a_time)
        try:
            futures = [pool.submit(self._run, name, run, one) for name, run in self._missing(runs)]
            for result in filter(None, (future.result() for future in as_completed(futures))):
                self._add(result)
        finally:
            pool.shutdown(cancel_futures=True)

    def _missing(self, runs: Mapping[str, int]) -> list[tuple[str, int]]:
        done = {(result.program, result.run) for result in self.results}
        rounds = ((name, run) for run in range(max(runs.values(), default=0)) for name in runs if run < runs[name])
        return [each for each in rounds if each not in done]

    def _run(self, program: str, run: int, one: Callable[[str, Path], Answer]) -> Result | None:
        """Return the result of a run; None where the time is up."""
        if self._until is not None and time.monotonic() > self._until:
            return None
        place = self._place_of(program, run)
        shutil.rmtree(place, ignore_errors=True)
        answer, why, seconds = one(program, place)
        return Result(program=program, run=run, answer=answer, why=why, seconds=seconds)

    def _place_of(self, program: str, run: int) -> Path:
        return self.directory / f"{program}.{run}"

    def _add(self, result: Result) -> None:
        """Note a result and tell it; keep what the run left where it is not right."""
        self.results.append(result)
        with (self.directory / RESULTS).open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        place = self._place_of(result.program, result.run)
        took = "" if result.seconds is None else f" after {result.seconds:.1f} s"
        why = "" if result.answer == RIGHT else f": {result.why} ({place})"
        if result.answer == RIGHT:
            shutil.rmtree(place, ignore_errors=True)
        tell(f"{result.program} {result.run}: {result.answer}{took}{why}")

    def tell_table(self, programs: Iterable[str], answers: Sequence[str]) -> None:
        """Tell how often each program got each answer, and the longest time that one took."""
        tell(f"{'':24}" + "".join(f"{answer:>12}" for answer in (*answers, "worst")))
        total = dict.fromkeys(answers, 0)
        for program in programs:
            mine = [result for result in self.results if result.program == program]
            counts = {answer: sum(result.answer == answer for result in mine) for answer in answers}
            worst = max((result.seconds for result in mine if result.seconds is not None), default=None)
            tell(_row(program, counts) + ("" if worst is None else f"{worst:10.1f} s"))
            total = {answer: total[answer] + counts[answer] for answer in answers}
        tell(_row("all", total))


def _row(name: str, counts: Mapping[str, int]) -> str:
    return f"{name:24}" + "".join(f"{count:12}" for count in counts.values())


def add_options(parser: argparse.ArgumentParser, *, runs: int, at_a_time: int = 1) -> None:
    """Add ``--runs``, ``--at-a-time``, ``--minutes`` and ``--directory``."""
    parser.add_argument("--runs", type=int, default=runs, help=f"of each program (default {runs})")
    parser.add_argument(
        "--at-a-time", type=int, default=at_a_time, help=f"programs beside one another (default {at_a_time})"
    )
    parser.add_argument("--minutes", type=float, help="begin no run after so long")
    parser.add_argument("--directory", type=Path, help="of results and kept logs; given again, only the rest is run")


def directory_of(options: argparse.Namespace, name: str) -> Path:
    """Return the directory that was asked for, else a new one."""
    return options.directory or Path(mkdtemp(prefix=f"distdiag-{name}-"))


def tell(line: str) -> None:
    """Write a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
