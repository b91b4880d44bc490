"""Start and stop a recorded program many times: ``python tests/benchmarks/start_stop.py [--runs 200] [--bare]``.

Each run is two fresh processes that import torch, make a gloo group, reduce, take a DDP step, meet in a barrier,
destroy the group and end as any script does. Counted are runs that hang and processes that do not exit with 0;
``--bare`` does the same without distdiag, to compare. 200 runs take about a quarter of an hour on two idle cores.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

RANKS = 2
LOOK_SECONDS = 0.05
STILL_SECONDS = 30
"""A run takes some 3 s, on a loaded machine minutes: only ranks that use no processor for so long hang."""
STILL_CPU_SECONDS = 0.5
"""Signs of life take less in that time; a process that wants to run gets more, whatever the load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the processes of one run ended."""

    hung: bool
    codes: tuple[int, ...]
    directory: Path
    """What the ranks wrote, kept only if they did not end well."""

    @property
    def well(self) -> bool:
        """Whether all ended by themselves, with 0."""
        return not self.hung and not any(self.codes)


def program(rank: int, store: str, *, bare: bool) -> None:
    """Be one rank."""
    if not bare:
        import distdiag

        distdiag.install()
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    tensor = torch.ones(8)
    for _ in range(5):
        dist.all_reduce(tensor)
    dist.all_reduce(tensor, async_op=True)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


def run_once(number: int, *, bare: bool) -> Outcome:
    """Start the ranks and wait for them."""
    directory = Path(tempfile.mkdtemp(prefix=f"distdiag-start-{number}-"))
    ranks = [start(rank, directory, bare=bare) for rank in range(RANKS)]
    outcome = Outcome(hung=hang(ranks), codes=tuple(end(process) for process in ranks), directory=directory)
    if outcome.well:
        shutil.rmtree(directory)
    return outcome


def hang(ranks: Sequence[subprocess.Popen[bytes]]) -> bool:
    """Wait until all have ended, or until those that have not do nothing any more; return whether it is that."""
    used, since = 0.0, time.monotonic()
    while any(process.poll() is None for process in ranks):
        now = cpu_seconds(ranks)
        if abs(now - used) > STILL_CPU_SECONDS:  # less, where one of them has ended
            used, since = now, time.monotonic()
        elif time.monotonic() - since > STILL_SECONDS:
            return True
        time.sleep(LOOK_SECONDS)
    return False


def cpu_seconds(ranks: Sequence[subprocess.Popen[bytes]]) -> float:
    """Return the processor time that those still running have used."""
    used = 0.0
    for process in ranks:
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(process.pid).cpu_times()
            used += times.user + times.system
    return used


def start(rank: int, directory: Path, *, bare: bool) -> subprocess.Popen[bytes]:
    """Start one rank."""
    command = [sys.executable, "-X", "faulthandler", __file__, "--store", str(directory / "store")]
    identity = {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "DISTDIAG_DIR": str(directory / "logs")}
    with (directory / f"errors{rank}").open("wb") as errors:
        return subprocess.Popen(
            [*command, "--rank", str(rank), *(["--bare"] if bare else [])], env=os.environ | identity, stderr=errors
        )


def end(process: subprocess.Popen[bytes]) -> int:
    """Return the exit code; a process that still runs first shows its stacks."""
    if process.poll() is None:
        process.send_signal(signal.SIGABRT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()


def main() -> int:
    """Run and count; 1 if any run did not end well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=2, help="runs at the same time")
    parser.add_argument("--bare", action="store_true", help="without distdiag")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        program(options.rank, options.store, bare=options.bare)
        return 0
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
        outcomes = list(pool.map(lambda number: run_once(number, bare=options.bare), range(options.runs)))
    bad = [outcome for outcome in outcomes if not outcome.well]
    for outcome in bad:
        sys.stdout.write(f"exit codes {outcome.codes}: see {outcome.directory}\n")
    codes = collections.Counter(code for outcome in outcomes for code in outcome.codes if code)
    sys.stdout.write(
        f"{len(outcomes)} runs of {RANKS} ranks, {'bare' if options.bare else 'recorded'}: "
        f"{sum(outcome.hung for outcome in outcomes)} hung, {sum(codes.values())} processes ended badly"
        f"{f' {dict(codes)}' if codes else ''}, {time.monotonic() - start:.0f} s\n"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
