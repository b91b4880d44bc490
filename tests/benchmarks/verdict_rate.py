"""How often fault programs get the right verdict: ``python -m tests.benchmarks.verdict_rate [CASE …] --runs 10``.

Without cases, all programs of ``tests/faults``; ``--beside`` takes those that lie beside the project instead. Hangs,
races and time-outs are not the same twice, so one run of each says little. ``--save`` writes the counts that the
README's table is made of; ``--keep`` keeps the logs.
"""

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from distdiag.analyzers import diagnose
from distdiag.run import load
from tests.faults.matrix import MATRIX, SHARED, VERDICTS
from tests.faults.nursery import Nursery
from tests.faults.runs import Fault, Outcome, complaints_of, run_ranks


def main() -> None:
    """Run the programs and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--beside", action="store_true")
    parser.add_argument("--at-a-time", type=int, default=2)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--save", action="store_true", help=f"write the counts to {VERDICTS.name}")
    options = parser.parse_args()
    known = {fault.name: fault for fault in (SHARED if options.beside else MATRIX)}
    if unknown := set(options.cases) - known.keys():
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    root = options.keep or Path(tempfile.mkdtemp(prefix="distdiag-verdicts-"))
    right: dict[str, int] = {}
    try:
        with ThreadPoolExecutor(options.at_a_time) as pool, contextlib.closing(Nursery()) as nursery:
            started = [_started(pool, nursery, known[name], root, options.runs) for name in options.cases or known]
            for fault, runs in started:
                found = [_complaints(fault, directory, codes.result()) for directory, codes in runs.items()]
                right[fault.name] = sum(not complaints for complaints in found)
                _print(fault.name, right[fault.name], found)
                if options.save:
                    _save(fault.name, right[fault.name], options.runs)
    finally:
        if options.keep is None:
            shutil.rmtree(root, ignore_errors=True)
    total = options.runs * len(right)
    sys.stdout.write(f"{sum(right.values())} of {total} right ({sum(right.values()) / total:.1%})\n")


def _started(
    pool: ThreadPoolExecutor, nursery: Nursery, fault: Fault, root: Path, runs: int
) -> tuple[Fault, Mapping[Path, "Future[tuple[int, ...]]"]]:
    """Let a program be run several times; return the directories with what will be its exit codes."""
    directories = [root / f"{fault.name}.{run}" for run in range(runs)]
    return fault, {directory: pool.submit(run_ranks, fault, directory, nursery) for directory in directories}


def _complaints(fault: Fault, directory: Path, codes: tuple[int, ...]) -> list[str]:
    """Return what is wrong with the verdict on one run."""
    return complaints_of(fault, Outcome(codes=codes, report=diagnose(load(directory / "logs"))))


def _save(name: str, right: int, runs: int) -> None:
    """Put the counts of one program in the place of its older ones."""
    counts = json.loads(VERDICTS.read_text()) if VERDICTS.exists() else {}
    counts[name] = {"runs": runs, "right": right}
    VERDICTS.write_text(json.dumps(dict(sorted(counts.items())), indent=1) + "\n")


def _print(name: str, right: int, found: list[list[str]]) -> None:
    wrong = sorted({"; ".join(complaints) for complaints in found if complaints})
    sys.stdout.write(f"{name:28} {right:3} of {len(found):3}  {' | '.join(wrong)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
