"""What hashing adds to saving a checkpoint: ``python tests/benchmarks/checkpoint_hash_cost.py [--saves 7]``.

One recorded process saves models of a few shapes with ``torch.save`` and with ``torch.distributed.checkpoint``: few
large tensors, many small ones. The elapsed time in the observers of the save, which hash what was written, is set
against the rest of the same save, so that what else the machine does meets both. Files lie in a temporary directory and
mostly in the page cache, where writing is fastest: on a slower disk the share is smaller.
"""

import argparse
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict_saver import save as save_sharded

import distdiag
from distdiag.hooks import checkpoints

MIB = 1 << 20
SHAPES = {
    "16 tensors of 16 MiB": (16, 16 * MIB),
    "256 of 512 KiB": (256, MIB // 2),
    "4,096 of 8 KiB": (4096, MIB // 128),
}
"""How many tensors, and how large each."""
OBSERVERS: tuple[tuple[type[Any], str], ...] = (
    (checkpoints._Files, "_measure"),
    (checkpoints._Written, "after"),
    (checkpoints._Finished, "after"),
)


class Spent:
    """Elapsed time in the observers, in nanoseconds."""

    def __init__(self) -> None:
        self.total_ns = 0

    def time(self, owner: type[Any], name: str) -> None:
        """Count what a method takes."""
        original: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter_ns()
            try:
                return original(*args, **kwargs)
            finally:
                self.total_ns += time.perf_counter_ns() - start

        setattr(owner, name, timed)


def saves(directory: Path) -> dict[str, Callable[[dict[str, Any], int], None]]:
    """Return the ways of saving, each for a model and the number of the save."""

    def with_torch(model: dict[str, Any], number: int) -> None:
        torch.save(model, directory / f"{number}.pt")

    def sharded(model: dict[str, Any], number: int) -> None:
        save_sharded(model, checkpoint_id=str(directory / f"{number}"), no_dist=True)

    return {"torch.save": with_torch, "DCP save": sharded}


def measured(
    save: Callable[[dict[str, Any], int], None], model: dict[str, Any], count: int, spent: Spent
) -> list[tuple[int, int]]:
    """Return (nanoseconds of a save, nanoseconds of them in the observers) for some saves; the first warms up."""
    told = []
    for number in range(count + 1):
        spent.total_ns = 0
        start = time.perf_counter_ns()
        save(model, number)
        told.append((time.perf_counter_ns() - start, spent.total_ns))
        distdiag.step()  # saves of one step are recorded up to a bound only
    return told[1:]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--saves", type=int, default=7)
    count: int = parser.parse_args().saves
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # one process is what is wanted
    spent = Spent()
    for observer in OBSERVERS:
        spent.time(*observer)
    with tempfile.TemporaryDirectory(prefix="distdiag-bench-") as name:
        distdiag.install(Path(name) / "logs")
        for shape, (tensors, size) in SHAPES.items():
            model = {f"layer{number}.weight": torch.rand(size // 4) for number in range(tensors)}
            for way in ("torch.save", "DCP save"):
                with tempfile.TemporaryDirectory(prefix="saved-", dir=name) as saved:
                    told = measured(saves(Path(saved))[way], model, count, spent)
                shares = [100 * own / (whole - own) for whole, own in told]
                own_ms = statistics.median(own for _, own in told) / 1e6
                whole_ms = statistics.median(whole for whole, _ in told) / 1e6
                sys.stdout.write(
                    f"{way:12}{shape:22}{tensors * size / MIB:5.0f} MiB  save {whole_ms:8.1f} ms  "
                    f"hashing {own_ms:7.2f} ms  {statistics.median(shares):6.2f} % "
                    f"({min(shares):.2f} to {max(shares):.2f})\n"
                )
        distdiag.uninstall()


if __name__ == "__main__":
    main()
