"""How often slow programs get cause and ranks, and busy ones none: ``python -m tests.benchmarks.slow_rate``.

It takes names of programs; without any, all of ``tests/faults/slow_kinds.py``, each ten times and busy ones twice as
often. Wrong is a first finding about slowness with another cause or other ranks, or any that names others; abstained
is none at all. Logs of what is not right are kept.
"""

import argparse
import contextlib
import os
from pathlib import Path

from tests.benchmarks.repetition import Answer, Repetition, add_options, directory_of
from tests.faults.runs import Fault, outcome_of, run_ranks
from tests.faults.slow_kinds import ABSTAINED, ALL, RIGHT, WRONG, judged
from tests.nursery import Nursery

PATIENCE_SECONDS = "30"
"""Of collectives: nobody hangs, and busy machines start slowly."""


def main() -> None:
    """Run the programs, tell each result, and a table at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = {fault.name: fault for fault in ALL}
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=", ".join(known))
    add_options(parser, runs=10)
    options = parser.parse_args()
    if unknown := set(options.programs) - known.keys():
        parser.error(f"no such program: {', '.join(sorted(unknown))}")
    os.environ["PG_TIMEOUT"] = PATIENCE_SECONDS
    chosen = options.programs or list(known)
    runs = {name: options.runs * (2 if known[name].is_healthy else 1) for name in chosen}
    repetition = Repetition(directory_of(options, "slow"), options.minutes)
    with contextlib.closing(Nursery()) as nursery:
        repetition.go_on(runs, lambda name, place: _judged(known[name], place, nursery), at_a_time=options.at_a_time)
    repetition.tell_table(chosen, (RIGHT, WRONG, ABSTAINED))


def _judged(fault: Fault, place: Path, nursery: Nursery) -> Answer:
    codes = run_ranks(fault, place, nursery)
    return Answer(*judged(fault, outcome_of(codes, place / "logs")))


if __name__ == "__main__":
    main()
