"""How often fault programs get the right verdict: ``python -m tests.benchmarks.verdict_rate [CASE …] --runs 10``.

Without cases, all programs of ``tests/faults``; ``--beside`` takes those that lie beside the project instead. Hangs,
races and time-outs are not the same twice, so one run of each says little. ``--save`` writes the counts that the
README's table is made of; logs of wrong verdicts are kept.
"""

import argparse
import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.repetition import RIGHT, Answer, Repetition, Result, add_options, directory_of, tell
from tests.faults.matrix import MATRIX, SHARED, VERDICTS
from tests.faults.runs import Fault, complaints_of, outcome_of, run_ranks
from tests.nursery import Nursery

WRONG = "wrong"


def main() -> None:
    """Run the programs, tell each result, and a table at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--beside", action="store_true")
    parser.add_argument("--save", action="store_true", help=f"write the counts to {VERDICTS.name}")
    add_options(parser, runs=1, at_a_time=2)
    options = parser.parse_args()
    known = {fault.name: fault for fault in (SHARED if options.beside else MATRIX)}
    if unknown := set(options.cases) - known.keys():
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    chosen = options.cases or list(known)
    repetition = Repetition(directory_of(options, "verdicts"), options.minutes)
    with contextlib.closing(Nursery()) as nursery:
        repetition.go_on(
            dict.fromkeys(chosen, options.runs),
            lambda name, place: _judged(known[name], place, nursery),
            at_a_time=options.at_a_time,
        )
    repetition.tell_table(chosen, (RIGHT, WRONG))
    found = [result for result in repetition.results if result.program in chosen]
    right = sum(result.answer == RIGHT for result in found)
    tell(f"{right} of {len(found)} right ({right / max(len(found), 1):.1%})")
    if options.save:
        _save(found)


def _judged(fault: Fault, place: Path, nursery: Nursery) -> Answer:
    codes = run_ranks(fault, place, nursery)
    complaints = complaints_of(fault, outcome_of(codes, place / "logs"))
    return Answer(WRONG, "; ".join(complaints)) if complaints else Answer(RIGHT)


def _save(found: Sequence[Result]) -> None:
    """Put the counts of programs in the place of their older ones."""
    counts = json.loads(VERDICTS.read_text()) if VERDICTS.exists() else {}
    for name in {result.program for result in found}:
        answers = [result.answer for result in found if result.program == name]
        counts[name] = {"runs": len(answers), "right": answers.count(RIGHT)}
    VERDICTS.write_text(json.dumps(dict(sorted(counts.items())), indent=1) + "\n")


if __name__ == "__main__":
    main()
