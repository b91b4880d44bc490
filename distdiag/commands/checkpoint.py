"""``distdiag checkpoint``: whether a checkpoint is whole, and whether it loads."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
import msgspec

from distdiag.checkpoints import WHOLE, Told, Trial, Verification, stamp, verify
from distdiag.checkpoints.plan import Plan, plan_of
from distdiag.checkpoints.records import METADATA
from distdiag.errors import DistdiagError
from distdiag.reporters._checkpoint import trial_lines, verification_lines
from distdiag.reporters._lines import size_of, write_lines

POLL_SECONDS = 0.05
LAST_LINES = 3
SCHEMA = "distdiag.verification/1"
DRILL_SCHEMA = "distdiag.drill/1"
DEFAULT_WORLDS = (1, 2, 3)
MOST_RANKS = 64
"""A drill runs on one host; more processes than this would say no more."""
_directory = click.argument("directory", type=click.Path(path_type=Path), metavar="DIR")
_form = click.option("--format", "form", type=click.Choice(("text", "json")), default="text", show_default=True)


def drill(directory: Path, worlds: Sequence[int], found: Verification, *, timeout_seconds: float) -> tuple[Trial, ...]:
    """Load a whole checkpoint once at each size of the world.

    Raises ``DistdiagError`` where torch is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise DistdiagError(
            "torch is not installed here, and a drill loads the checkpoint with it",
            "pip install 'distdiag[torch]'; distdiag checkpoint verify needs none",
        )
    plan = plan_of(directory)
    basis = "save" if found.facts.hashed == "all" else "file"
    return tuple(_trial(plan, world, basis, timeout_seconds) for world in dict.fromkeys(worlds))


def _trial(plan: Plan, world: int, basis: str, timeout_seconds: float) -> Trial:
    with tempfile.TemporaryDirectory(prefix="distdiag-drill-") as name:
        folder = Path(name)
        (folder / "plan.json").write_bytes(msgspec.json.encode(plan))
        processes = [_start(folder, rank, world) for rank in range(world)]
        _wait(processes, time.monotonic() + timeout_seconds)
        error = _error(folder, processes, timeout_seconds)
        if error:
            return Trial(world_size=world, error=error)
        told = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]
    wrong = told[0]["wrong"]
    return Trial(
        world_size=world,
        seconds=max(each["seconds"] for each in told),
        peak_bytes=max(each["peak_bytes"] for each in told),
        grown_bytes=max(each["grown_bytes"] for each in told),
        tensors=len(plan.tensors),
        chunks=told[0]["compared"],
        basis=basis,
        left_out=tuple(plan.left_out),
        error=f"{wrong[0]} is not what was saved, the first of {len(wrong)} chunks" if wrong else "",
    )


def _start(folder: Path, rank: int, world: int) -> "subprocess.Popen[bytes]":
    threads = max(1, (os.cpu_count() or 1) // world)
    own = {"DISTDIAG": "off", "OMP_NUM_THREADS": str(threads), "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore"}
    with (folder / f"{rank}.err").open("wb") as err:
        return subprocess.Popen(
            [sys.executable, "-m", "distdiag.commands._drill_rank", str(folder), str(rank), str(world)],
            env={**os.environ, **own},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=err,
            start_new_session=True,
        )


def _wait(processes: "Sequence[subprocess.Popen[bytes]]", deadline: float) -> None:
    """Wait until all have ended, one has failed or time is up; then end whatever is left."""
    try:
        while time.monotonic() < deadline:
            codes = [process.poll() for process in processes]
            if None not in codes or any(codes):
                break
            time.sleep(POLL_SECONDS)
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _error(folder: Path, processes: "Sequence[subprocess.Popen[bytes]]", timeout_seconds: float) -> str:
    failed = [rank for rank, process in enumerate(processes) if process.returncode > 0]
    failed = failed or [rank for rank, process in enumerate(processes) if process.returncode]
    if not failed:
        return ""
    lines = (folder / f"{failed[0]}.err").read_text(errors="replace").strip().splitlines()
    said = "; ".join(line.strip() for line in lines[-LAST_LINES:])
    code = processes[failed[0]].returncode
    if code == -signal.SIGKILL and not said:
        return f"it was not done after {timeout_seconds:g} s, or a rank was killed for memory"
    return f"rank {failed[0]} failed: {said or f'exit code {code}'}"


@click.group("checkpoint", short_help="Say whether a checkpoint is whole, and whether it loads.")
def command() -> None:
    """Say whether a checkpoint is whole, and whether it loads."""


@command.command("verify", short_help="Check every byte of a checkpoint, without torch.")
@_directory
@click.option("--logs", type=click.Path(path_type=Path), help="Logs of the run that saved it: they hold hashes, too.")
@click.option("--step", type=int, help="The step that it should be of.")
@click.option("--world-size", type=int, help="How many ranks should have saved it.")
@click.option("--quick", is_flag=True, help="Look at names and sizes only.")
@click.option("--stamp/--no-stamp", "stamped", default=True, help="Note the outcome inside the checkpoint.")
@_form
def verify_command(
    directory: Path,
    logs: Path | None,
    step: int | None,
    world_size: int | None,
    quick: bool,
    stamped: bool,
    form: str,
) -> int:
    """Check that a checkpoint is whole: nothing missing, cut, covered twice or changed.

    DIR is a folder of torch.distributed.checkpoint, or a file or folder of torch.save or safetensors. Nothing that it
    holds is run.

    Exit code: 0 whole, 1 damaged or incomplete, 2 no checkpoint there.
    """
    files = None if logs is None else _hashes_in(logs, directory)
    found = verify(directory, Told(step=step, world_size=world_size, files=files), contents=not quick)
    if stamped:
        stamp(directory, found)
    _show(found, form)
    return 0 if found.outcome == WHOLE else 1


@command.command("drill", short_help="Load a checkpoint at several sizes of the world.")
@_directory
@click.option("--world", "worlds", type=click.IntRange(1, MOST_RANKS), multiple=True, help="Ranks; may be repeated.")
@click.option("--timeout", type=float, default=600.0, show_default=True, help="Seconds for each trial.")
@_form
def drill_command(directory: Path, worlds: tuple[int, ...], timeout: float, form: str) -> int:
    """Load a checkpoint in small processes, at several sizes of the world, and compare what was loaded.

    Each tensor is split over the ranks anew, put together again and compared with the checksums of the save.

    Exit code: 0 it loads, 1 it does not or is damaged, 2 it cannot be tried.
    """
    found = verify(directory)
    if found.outcome != WHOLE:
        _show(found, form)
        return 1
    if found.facts.kind != "sharded":
        raise DistdiagError(
            f"{directory} is not a checkpoint of torch.distributed.checkpoint",
            "there is nothing to split anew; distdiag checkpoint verify checks it",
        )
    if not (directory / METADATA).exists():
        raise DistdiagError(
            f"{directory} has metadata of each rank instead of one for all",
            f"it loads only at {found.facts.world_size} ranks: there is nothing to split anew",
        )
    trials = drill(directory, worlds or DEFAULT_WORLDS, found, timeout_seconds=timeout)
    _show_trials(directory, trials, form)
    return 1 if any(each.error for each in trials) else 0


def _hashes_in(logs: Path, directory: Path) -> dict[str, str]:
    """Return what the logs of a run say of the files of a checkpoint; a copy elsewhere is known by its name."""
    from distdiag.importers import load  # pandas and duckdb: not for --help

    phases = load(logs).phases
    ended = phases[(phases["edge"] == "end") & phases["directory"].notna()].sort_values("time_ns")
    here = directory.absolute()
    of_it: dict[str, dict[str, str]] = {}
    for where, files in zip(ended["directory"], ended["files"], strict=True):
        for folder in (Path(where), Path(where).parent):
            of_it.setdefault(str(folder), {}).update(files)
    exact = of_it.get(str(here))
    if exact is not None:
        return exact
    named = [files for folder, files in of_it.items() if Path(folder).name == here.name]
    if len(named) != 1:
        raise DistdiagError(f"the logs in {logs} tell of no save of {directory}", "leave --logs out to check without")
    return named[0]


def _show(found: Verification, form: str) -> None:
    if form == "json":
        _write_json({"schema": SCHEMA, "outcome": found.outcome, **asdict(found)})
    else:
        width, _ = size_of(sys.stdout)
        write_lines(verification_lines(found, width), sys.stdout)


def _show_trials(directory: Path, trials: Sequence[Trial], form: str) -> None:
    if form == "json":
        _write_json({"schema": DRILL_SCHEMA, "directory": str(directory), "trials": [asdict(each) for each in trials]})
    else:
        width, _ = size_of(sys.stdout)
        write_lines(trial_lines(str(directory), trials, width), sys.stdout)


def _write_json(told: dict[str, object]) -> None:
    json.dump(told, sys.stdout, indent=2)
    sys.stdout.write("\n")
