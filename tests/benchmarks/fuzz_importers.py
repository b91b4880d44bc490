"""Feed damaged files to the importers: none may fail, hang, or use much memory.

    python -m tests.benchmarks.fuzz_importers [--count 10000] [--seed 0] [--verdicts 200]

Prints how many were read, what failed, how long it took, and the most memory that was resident. ``--verdicts`` is how
many of them are analysed to the end as well.
"""

import argparse
import resource
import sys
import tempfile
import time
import traceback
from pathlib import Path

from distdiag.analyzers import diagnose
from distdiag.errors import DistdiagError
from distdiag.importers import load, stacks, stderr
from tests.mutations import damaged

MIB = 1 << 20
MOST_SHOWN = 5


def main() -> int:
    """Run the whole; return 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verdicts", type=int, default=200)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        failed = _text(Path(directory), arguments.seed, arguments.count, arguments.verdicts)
    return 1 if failed else 0


def _text(directory: Path, seed: int, count: int, verdicts: int) -> int:
    file = directory / "train.log"
    failures: list[int] = []
    slowest, lines = (0.0, seed), 0
    began = time.monotonic()
    for number in range(seed, seed + count):
        content = damaged(number)
        lines += content.count(b"\n") + 1
        file.write_bytes(content)
        started = time.monotonic()
        try:
            list(stderr.read([file]))
            list(stacks.read([file]))
            if number - seed < verdicts:
                _verdict(directory)
        except Exception:  # noqa: BLE001 - whatever an importer raises is what is looked for
            failures.append(number)
            if len(failures) <= MOST_SHOWN:
                sys.stderr.write(f"seed {number}:\n{traceback.format_exc()}\n")
        slowest = max(slowest, (time.monotonic() - started, number))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    sys.stdout.write(
        f"text: {count} outputs of {lines} lines, {verdicts} analysed to the end: {len(failures)} failed, "
        f"{time.monotonic() - began:.0f} s, slowest {slowest[0]:.2f} s (seed {slowest[1]}), "
        f"at most {peak / MIB:.0f} MiB resident\n"
    )
    return len(failures)


def _verdict(directory: Path) -> None:
    try:
        diagnose(load(directory))
    except DistdiagError as error:
        if not error.hint:
            raise


if __name__ == "__main__":
    sys.exit(main())
