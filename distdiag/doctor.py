"""Whether this machine lets a job be recorded and diagnosed: one check per thing that was missing on a bad night."""

import ctypes
import errno
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

from distdiag.errors import DistdiagError
from distdiag.hooks.stacks import take
from distdiag.journal import Journal, is_network_filesystem, local_directory, within_patience
from distdiag.settings import is_off, resolve

GOOD, NOTE, BAD = "good", "note", "bad"
"""``bad`` hinders recording or diagnosis, ``note`` costs something or is worth knowing."""

CHILD_SECONDS = 60.0
"""Importing torch from a slow file system takes that long."""
TIME_ERROR = 5
"""What ``adjtimex`` returns where nothing keeps the clock in step (Linux, adjtimex(2))."""
STATUS_UNSYNCHRONISED = 0x40
TIMEX_BYTES = 208
TIMEX_FIELDS = {"offset": 8, "maxerror": 24, "status": 40}
"""Offsets in ``struct timex`` on 64-bit Linux."""
RANKS_OF_A_HOST = 8
OLDEST_TORCH = (2, 6)
SMALL_SHM_BYTES = 1 << 30
"""Loader workers hand batches over through it; Docker's default of 64 MiB ends them with a bus error."""
YES = frozenset({"1", "true", "yes", "on", "y"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What one check found: ``told`` is a sentence, ``hint`` what to do about it."""

    subject: str
    state: str
    told: str
    hint: str = ""


Environment = Mapping[str, str]


def examine(directory: Path, environ: Environment = os.environ) -> tuple[Check, ...]:
    """Return what all checks found; ``directory`` is where logs shall go."""
    return tuple(check for ask in CHECKS for check in ask(directory, environ))


def _versions(directory: Path, environ: Environment) -> Iterator[Check]:
    own = metadata.version("distdiag")
    python = sys.version.split()[0]
    if importlib.util.find_spec("torch") is None:
        yield Check(
            subject="versions",
            state=NOTE,
            told=f"distdiag {own}, Python {python}, no torch: logs can be read here, but no job recorded",
            hint="install it where the job runs: pip install 'distdiag[torch]'",
        )
        return
    torch = metadata.version("torch")
    if tuple(map(int, re.findall(r"\d+", torch)[:2])) < OLDEST_TORCH:
        told = f"torch {torch} is older than {'.'.join(map(str, OLDEST_TORCH))}, of which recording makes use"
        yield Check(subject="versions", state=BAD, told=told, hint="use a newer torch")
        return
    yield Check(subject="versions", state=GOOD, told=f"distdiag {own}, Python {python}, torch {torch}")


def _switched_on(directory: Path, environ: Environment) -> Iterator[Check]:
    if is_off(environ):
        yield Check(
            subject="recording",
            state=BAD,
            told=f"DISTDIAG={environ['DISTDIAG']} switches recording off",
            hint="unset DISTDIAG",
        )
        return
    try:
        settings = resolve(environ=environ)
    except DistdiagError as error:
        yield Check(subject="recording", state=BAD, told=error.message, hint=error.hint)
        return
    floor = settings.stall_after_seconds
    yield Check(
        subject="recording",
        state=GOOD,
        told=f"is on; silence of {floor:g} s or more counts as a stall, a rank's log takes at most "
        f"{settings.max_bytes / 2**20:.0f} MiB",
    )


def _log_directory(directory: Path, environ: Environment) -> Iterator[Check]:
    remote = within_patience(partial(is_network_filesystem, directory), otherwise=None)
    if remote is None:
        yield Check(
            subject="log directory",
            state=BAD,
            told=f"the file system of {directory} does not answer",
            hint="look at its mount, or choose another directory with DISTDIAG_DIR",
        )
        return
    written = (local_directory(directory) if remote else None) or directory
    try:
        free = _write_and_read(written)
    except OSError as error:
        yield Check(
            subject="log directory",
            state=BAD,
            told=f"no log can be written to {written}: {error.strerror or error}",
            hint="choose another directory with DISTDIAG_DIR",
        )
        return
    shipped = f"; {directory} is on a network file system, and a thread ships what is written there" if remote else ""
    yield Check(subject="log directory", state=GOOD, told=f"records can be written to {written}{shipped}")
    try:
        needed = RANKS_OF_A_HOST * resolve(environ=environ).max_bytes
    except DistdiagError:
        return  # what is wrong with the settings is said by the check of these
    yield Check(
        subject="free space",
        state=GOOD if free >= needed else NOTE,
        told=f"{free / 2**30:.1f} GiB are free there; {RANKS_OF_A_HOST} ranks write at most {needed / 2**30:.0f} GiB",
        hint="" if free >= needed else "lower DISTDIAG_MAX_BYTES, or choose a larger disk with DISTDIAG_DIR",
    )


def _write_and_read(directory: Path) -> int:
    """Write a record the way a rank does and return how many bytes are free there; OSError where it fails."""
    made = not directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".distdiag-doctor-", dir=directory) as place:
            record = b'{"kind":"pulse","time_ns":1,"step":0}\n'
            journal = Journal(Path(place), stem="rank00000", attempt=None, header=lambda segment: b"")
            journal.append(record)
            written = journal.path.read_bytes().rstrip(b"\0")
            journal.close()
        if record not in written:
            raise OSError(errno.EIO, "a record that was written could not be read back")
        return shutil.disk_usage(directory).free
    finally:
        if made:
            directory.rmdir()


def _stacks(directory: Path, environ: Environment) -> Iterator[Check]:
    how, _ = take(native=True)
    if how == "py-spy":
        yield Check(subject="stacks", state=GOOD, told="a stalled rank can be seen into C and C++ code, by py-spy")
        return
    found = shutil.which("py-spy", path=os.pathsep.join((os.path.dirname(sys.executable), os.defpath)))
    yield Check(
        subject="stacks",
        state=NOTE,
        told="py-spy may not look at processes here" if found else "py-spy is not installed",
        hint="a stalled rank shows its Python frames only; for the rest allow ptrace: "
        "docker run --cap-add SYS_PTRACE, or kernel.yama.ptrace_scope=1"
        if found
        else "pip install py-spy",
    )


def _clock(directory: Path, environ: Environment) -> Iterator[Check]:
    timex = (ctypes.c_char * TIMEX_BYTES)()
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError):
        return
    status = ctypes.c_int.from_buffer(timex, TIMEX_FIELDS["status"]).value
    if state < 0:
        return  # not allowed here, and nothing depends on it
    if state == TIME_ERROR or status & STATUS_UNSYNCHRONISED:
        yield Check(
            subject="clock",
            state=NOTE,
            told="nothing keeps this machine's clock in step with others",
            hint="analysis aligns clocks from the ends of collectives; chrony or ntpd makes it exact from the start",
        )
        return
    error_us = ctypes.c_long.from_buffer(timex, TIMEX_FIELDS["maxerror"]).value
    yield Check(subject="clock", state=GOOD, told=f"is kept in step, at most {error_us / 1e3:.0f} ms off")


def _shared_memory(directory: Path, environ: Environment) -> Iterator[Check]:
    memory = Path("/dev/shm")
    if not memory.is_dir():
        return
    size = shutil.disk_usage(memory).total
    if size < SMALL_SHM_BYTES:
        yield Check(
            subject="shared memory",
            state=NOTE,
            told=f"/dev/shm holds {size / 2**20:.0f} MiB; loader workers that need more die of a bus error",
            hint="docker run --shm-size 8g (or --ipc host)",
        )


def _variables(directory: Path, environ: Environment) -> Iterator[Check]:
    """Yield what of the environment helps or hinders a diagnosis."""
    for rule in RULES:
        value = environ.get(rule.name)
        if rule.applies(value):
            yield Check(
                subject=rule.name,
                state=NOTE,
                told=f"{rule.name}={value}: {rule.told}"
                if value is not None
                else f"{rule.name} is not set: {rule.told}",
                hint=rule.hint,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a setting of the environment means for a diagnosis."""

    name: str
    applies: Callable[[str | None], bool]
    told: str
    hint: str


def _on(value: str | None) -> bool:
    return value is not None and value.strip().lower() in YES


def _zero(value: str | None) -> bool:
    return value is not None and value.strip() in ("", "0")


RULES: tuple[Rule, ...] = (
    Rule(
        name="TORCH_NCCL_TRACE_BUFFER_SIZE",
        applies=_zero,
        told="torch's flight recorder is off, and with it the ends of NCCL collectives",
        hint="export TORCH_NCCL_TRACE_BUFFER_SIZE=2000",
    ),
    Rule(
        name="TORCH_NCCL_ASYNC_ERROR_HANDLING",
        applies=_zero,
        told="a hung NCCL collective never ends the job, it waits for ever",
        hint="unset it, unless something else ends hung jobs",
    ),
    Rule(
        name="TORCH_NCCL_BLOCKING_WAIT",
        applies=_on,
        told="every wait holds the thread until the device is done, which hides overlap and slows training",
        hint="unset it",
    ),
    Rule(
        name="CUDA_LAUNCH_BLOCKING",
        applies=_on,
        told="every kernel is waited for: times are not those of normal training",
        hint="unset it after debugging",
    ),
    Rule(
        name="TORCH_DISTRIBUTED_DEBUG",
        applies=lambda value: value is not None and value.strip().upper() == "DETAIL",
        told="each collective is checked against all ranks first, which makes it 3 to 12 times slower",
        hint="unset it: the logs tell the same",
    ),
    Rule(
        name="NCCL_DEBUG",
        applies=lambda value: value is not None and value.strip().upper() in ("TRACE", "INFO"),
        told="NCCL writes much; its output is read when it lies beside the logs",
        hint="NCCL_DEBUG=WARN is enough for most jobs",
    ),
    Rule(
        name="PYTHONOPTIMIZE",
        applies=lambda value: value is not None and value.strip() not in ("", "0"),
        told="assertions are off: shape errors that they would catch show up later, as hangs",
        hint="unset it while looking for a fault",
    ),
)

PROBE = """
import json, os, tempfile
import torch
import torch.distributed as dist
told = {"cuda": torch.cuda.is_available(), "distributed": dist.is_available()}
if dist.is_available():
    told["nccl"] = dist.is_nccl_available()
    import distdiag
    with tempfile.TemporaryDirectory() as place:
        os.environ.update(RANK="0", WORLD_SIZE="1")
        distdiag.install(place)
        dist.init_process_group("gloo", init_method=f"file://{place}/store", rank=0, world_size=1)
        dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()
        distdiag.uninstall()
        told["recorded"] = b'"op":"all_reduce"' in open(f"{place}/rank00000.jsonl", "rb").read()
print(json.dumps(told))
"""


def _torch(directory: Path, environ: Environment) -> Iterator[Check]:
    """Record one collective in a process of its own."""
    if importlib.util.find_spec("torch") is None:
        return
    kept = {name: value for name, value in environ.items() if not name.startswith("DISTDIAG")}
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=CHILD_SECONDS, env=kept, check=False
        )
    except subprocess.TimeoutExpired:
        told = f"a process that imports torch and reduces one tensor did not end within {CHILD_SECONDS:.0f} s"
        yield Check(subject="a collective", state=BAD, told=told, hint="try it by hand: python -c 'import torch'")
        return
    try:
        found = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        yield Check(subject="a collective", state=BAD, told=f"could not be run here: {last}", hint="mend torch first")
        return
    if not found["distributed"]:
        yield Check(subject="a collective", state=BAD, told="this torch is built without torch.distributed")
        return
    devices = "CUDA and NCCL are there" if found["cuda"] and found["nccl"] else "there is no GPU, ranks use gloo"
    yield Check(
        subject="a collective",
        state=GOOD if found["recorded"] else BAD,
        told=f"was run and recorded; {devices}" if found["recorded"] else "was run, and not recorded",
        hint="" if found["recorded"] else "set DISTDIAG_RAISE=1 and run a small script to see the error",
    )


CHECKS: tuple[Callable[[Path, Environment], Iterator[Check]], ...] = (
    _versions,
    _switched_on,
    _log_directory,
    _torch,
    _stacks,
    _clock,
    _shared_memory,
    _variables,
)
