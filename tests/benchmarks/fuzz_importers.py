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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from distdiag.analyzers import diagnose
from distdiag.errors import DistdiagError
from distdiag.importers import flight_recorder, load, stacks, stderr
from tests import dump_mutations, mutations

MIB = 1 << 20
MOST_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Files of one kind, damaged by number, and what reads them."""

    name: str
    files: Callable[[int], Mapping[str, bytes]]
    read: Callable[[Sequence[Path]], Iterable[object]]


def main() -> int:
    """Run the whole; return 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verdicts", type=int, default=200)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        marker = Path(directory) / "run"
        failed = sum(
            _tried(kind, Path(directory) / kind.name, arguments.seed, arguments.count, arguments.verdicts)
            for kind in _kinds(str(marker))
        )
        if marker.exists():
            sys.stdout.write("something that stood in a dump was run\n")
            failed += 1
    return 1 if failed else 0


def _kinds(marker: str) -> tuple[Kind, ...]:
    return (
        Kind(
            name="text",
            files=lambda seed: {"train.log": mutations.damaged(seed)},
            read=lambda files: [*stderr.read(files), *stacks.read(files)],
        ),
        Kind(name="dumps", files=lambda seed: dump_mutations.damaged(seed, marker), read=flight_recorder.read),
    )


def _tried(kind: Kind, directory: Path, seed: int, count: int, verdicts: int) -> int:
    directory.mkdir()
    failures: list[int] = []
    slowest, size = (0.0, seed), 0
    began = time.monotonic()
    for number in range(seed, seed + count):
        contents = kind.files(number)
        size += sum(map(len, contents.values()))
        files = _written(directory, contents)
        started = time.monotonic()
        try:
            list(kind.read(files))
            if number - seed < verdicts:
                _verdict(directory)
        except Exception:  # noqa: BLE001 - whatever an importer raises is what is looked for
            failures.append(number)
            if len(failures) <= MOST_SHOWN:
                sys.stderr.write(f"{kind.name}, seed {number}:\n{traceback.format_exc()}\n")
        slowest = max(slowest, (time.monotonic() - started, number))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    sys.stdout.write(
        f"{kind.name}: {count} damaged, {size / MIB:.0f} MiB, {verdicts} analysed to the end: {len(failures)} failed, "
        f"{time.monotonic() - began:.0f} s, slowest {slowest[0]:.2f} s (seed {slowest[1]}), "
        f"at most {peak / MIB:.0f} MiB resident\n"
    )
    sys.stdout.flush()
    return len(failures)


def _written(directory: Path, contents: Mapping[str, bytes]) -> list[Path]:
    for file in directory.iterdir():
        if file.name not in contents:
            file.unlink()
    for name, data in contents.items():
        (directory / name).write_bytes(data)
    return [directory / name for name in contents]


def _verdict(directory: Path) -> None:
    try:
        diagnose(load(directory))
    except DistdiagError as error:
        if not error.hint:
            raise


if __name__ == "__main__":
    sys.exit(main())
