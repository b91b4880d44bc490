"""``distdiag run``: run a training script with recording on, without a change to it.

This is the training process: only the standard library and the recording side are imported here.

What it runs may itself be a launcher: some trainers start the other ranks of a host by running their script again, and
torchrun may stand behind it instead of before. A Python program that is started with a rank of its own runs below
``distdiag run``, too.
"""

import optparse
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping
from typing import Any

import distdiag
from distdiag import recording, settings
from distdiag.commands import _program
from distdiag.errors import DistdiagError, guard
from distdiag.settings import Settings

USAGE = """%prog [OPTIONS] SCRIPT [ARGS]...
       %prog [OPTIONS] -m MODULE [ARGS]..."""

DESCRIPTION = (
    "Run a training script with recording on, exactly as python would run it. "
    "Works on both sides of a launcher: torchrun --nproc-per-node 8 -m distdiag run train.py, or "
    "distdiag run torchrun --nproc-per-node 8 train.py. Ranks that the script itself starts are recorded as well."
)

RANKS = ("RANK", "LOCAL_RANK")
"""Variables that a launcher gives each rank a value of its own of."""
LAUNCHERS = ("deepspeed.launcher.", "torch.distributed.run", "torch.distributed.launch", "accelerate.commands.")
"""Modules that start ranks, and are themselves started by other launchers."""
SWITCHES = frozenset({"-B", "-E", "-I", "-O", "-OO", "-P", "-q", "-s", "-S", "-u", "-v"})
"""Options of the interpreter that stand alone."""
WITH_VALUES = frozenset({"-W", "-X"})


def main(arguments: list[str]) -> None:
    """Record while running the script or module that ``arguments`` name; its exit code passes through."""
    options, (target, *rest) = _parse(arguments)
    try:
        program = _program.find_module(target) if options.module else _program.find_script(target)
    except DistdiagError as error:
        sys.stderr.write(f"error: {error.message}\nhint: {error.hint}\n")
        sys.exit(2)
    except SyntaxError as error:
        traceback.print_exception(error.with_traceback(None))
        sys.exit(1)
    sys.argv = [program.argv0, *rest]
    _program.show_tracebacks_from(program.file)
    _start_recording(options)
    _program.use_search_path(program.search_path)
    _program.execute(program)


def _parse(arguments: list[str]) -> tuple[optparse.Values, list[str]]:
    parser = optparse.OptionParser(prog="distdiag run", usage=USAGE, description=DESCRIPTION)
    parser.disable_interspersed_args()  # what follows the script is the script's
    parser.add_option("--dir", metavar="DIR", help="where the logs go (default: $DISTDIAG_DIR or distdiag_logs)")
    parser.add_option("--stall-after", type=float, metavar="SECONDS", help="shortest silence that is a stall (60)")
    parser.add_option("--max-bytes", type=int, metavar="BYTES", help="cap of one rank's log (256 MiB)")
    parser.add_option("-m", dest="module", action="store_true", help="run a module instead of a script")
    options, rest = parser.parse_args(arguments)
    if not rest:
        parser.error("no script to run")
    return options, rest


def _start_recording(options: optparse.Values) -> None:
    """Switch recording on; if that fails, training goes on without it."""
    chosen = {"stall_after": options.stall_after, "max_bytes": options.max_bytes}
    reason = "DISTDIAG_RAISE=1 shows why"
    try:
        resolved = settings.resolve(options.dir, **chosen)
        distdiag.install(options.dir, **chosen)
        follow(resolved)
    except DistdiagError as error:
        reason = error.message
    if not distdiag.is_recording() and not settings.is_off():
        sys.stderr.write(f"distdiag: nothing is recorded ({reason}); the script runs without it\n")


def follow(resolved: Settings) -> None:
    """Record ranks that are started as programs, with the settings of this one."""
    start = subprocess.Popen.__init__

    def started(self: Any, args: Any, *others: Any, **named: Any) -> None:
        with guard("record what is started"):
            installed = recording.installed()
            # What a rank starts is a world of its own, whose numbers are not those of this job.
            if installed is not None and not installed.recorder.identity.is_rank:
                recorded = below(args, named.get("env"), resolved)
                if recorded is not args and _finds_distdiag():
                    args = recorded
        start(self, args, *others, **named)

    subprocess.Popen.__init__ = started  # type: ignore[method-assign]


def below(args: Any, environment: Mapping[str, str] | None, resolved: Settings) -> Any:
    """Return what runs a program below ``distdiag run``; else ``args``: neither a rank nor a launcher."""
    if not isinstance(args, list | tuple) or not args or args[0] != sys.executable:
        return args
    environment = environment or {}
    place = 1
    while place < len(args) and args[place] in SWITCHES | WITH_VALUES:
        place += 2 if args[place] in WITH_VALUES else 1
    switches, program = args[:place], args[place:]
    if not program or tuple(program[:2]) == ("-m", "distdiag") or _is_no_file(program[0]):
        return args
    is_rank = any(environment.get(name) not in (None, os.environ.get(name)) for name in RANKS)
    module = str(program[1]) if program[0] == "-m" and len(program) > 1 else ""
    if not is_rank and not module.startswith(LAUNCHERS):
        return args
    options = ["--dir", str(resolved.directory), "--stall-after", f"{resolved.stall_after_seconds:g}"]
    return [*switches, "-m", "distdiag", "run", *options, "--max-bytes", str(resolved.max_bytes), *program]


def _is_no_file(argument: Any) -> bool:
    return argument != "-m" and str(argument).startswith("-")


def _finds_distdiag() -> bool:
    """Return whether a program started now would find distdiag, which may stand where only this one looked first."""
    return any(finder.find_spec("distdiag", None) for finder in sys.meta_path if hasattr(finder, "find_spec"))
