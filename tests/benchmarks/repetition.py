"""What benchmarks that do one thing many times share: a limit of time, what was found so far, and a table of it.

A directory holds ``results.jsonl`` with a line for each run, and what was kept of single runs. Whoever gives the same
directory again goes on where the last one stopped.
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import mkdtemp

RESULTS = "results.jsonl"


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


class Repetition:
    """Runs that are done, in a directory, and the time that is left for more."""

    def __init__(self, directory: Path, minutes: float | None) -> None:
        self.directory = directory
        self._until = None if minutes is None else time.monotonic() + 60 * minutes
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / RESULTS
        lines = file.read_text().splitlines() if file.exists() else []
        self.results = [Result(**json.loads(line)) for line in lines]

    def missing(self, runs: Mapping[str, int]) -> list[tuple[str, int]]:
        """Return what is still to be run of so many runs of each program, the first runs of all before the second."""
        done = {(result.program, result.run) for result in self.results}
        rounds = ((name, run) for run in range(max(runs.values(), default=0)) for name in runs if run < runs[name])
        return [each for each in rounds if each not in done]

    @property
    def time_is_up(self) -> bool:
        """Return whether no more runs should begin."""
        return self._until is not None and time.monotonic() > self._until

    def place_of(self, program: str, run: int) -> Path:
        """Return an empty directory for a run."""
        place = self.directory / f"{program}.{run}"
        shutil.rmtree(place, ignore_errors=True)
        return place

    def add(self, result: Result, *, keep: bool) -> None:
        """Note a result, tell it, and keep what the run left, or not."""
        self.results.append(result)
        with (self.directory / RESULTS).open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        place = self.directory / f"{result.program}.{result.run}"
        if not keep:
            shutil.rmtree(place, ignore_errors=True)
        took = "" if result.seconds is None else f" after {result.seconds:.1f} s"
        why = f": {result.why}" if result.why else ""
        tell(f"{result.program} {result.run}: {result.answer}{took}{why}" + (f" ({place})" if keep else ""))

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


def add_options(parser: argparse.ArgumentParser, *, runs: int) -> None:
    """Add ``--runs``, ``--minutes`` and ``--directory``."""
    parser.add_argument("--runs", type=int, default=runs, help=f"of each program (default {runs})")
    parser.add_argument("--minutes", type=float, help="begin no run after so long")
    parser.add_argument("--directory", type=Path, help="of results and kept logs; given again, only the rest is run")


def directory_of(options: argparse.Namespace, name: str) -> Path:
    """Return the directory that was asked for, else a new one."""
    return options.directory or Path(mkdtemp(prefix=f"distdiag-{name}-"))


def tell(line: str) -> None:
    """Write a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
