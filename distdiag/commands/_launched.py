"""Ranks that a program starts as programs of their own: what ``distdiag run`` runs may itself be a launcher.

Some trainers start the other ranks of a host by running their script again, and torchrun may stand behind ``distdiag
run`` instead of before it. A Python program that is started with a rank of its own runs below ``distdiag run``, too.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from distdiag import recording
from distdiag.errors import guard
from distdiag.settings import Settings

RANKS = ("RANK", "LOCAL_RANK")
"""Variables that a launcher gives each rank a value of its own of."""
LAUNCHERS = ("deepspeed.launcher.", "torch.distributed.run", "torch.distributed.launch", "accelerate.commands.")
"""Modules that start ranks, and are themselves started by other launchers."""
SWITCHES = frozenset({"-B", "-E", "-I", "-O", "-OO", "-P", "-q", "-s", "-S", "-u", "-v"})
"""Options of the interpreter that stand alone."""
WITH_VALUES = frozenset({"-W", "-X"})


def follow(settings: Settings) -> None:
    """Record ranks that are started as programs, with the ``settings`` of this one."""
    start = subprocess.Popen.__init__

    def started(self: Any, args: Any, *others: Any, **named: Any) -> None:
        with guard("record what is started"):
            installed = recording.installed()
            # What a rank starts is a world of its own, whose numbers are not those of this job.
            if installed is not None and not installed.recorder.identity.is_rank:
                recorded = below(args, named.get("env"), settings)
                if recorded is not args and _finds_distdiag():
                    args = recorded
        start(self, args, *others, **named)

    subprocess.Popen.__init__ = started  # type: ignore[method-assign]


def below(args: Any, environment: Mapping[str, str] | None, settings: Settings) -> Any:
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
    options = ["--dir", str(settings.directory), "--stall-after", f"{settings.stall_after_seconds:g}"]
    return [*switches, "-m", "distdiag", "run", *options, "--max-bytes", str(settings.max_bytes), *program]


def _is_no_file(argument: Any) -> bool:
    return argument != "-m" and str(argument).startswith("-")


def _finds_distdiag() -> bool:
    """Return whether a program started now would find distdiag, which may stand where only this one looked first."""
    return any(finder.find_spec("distdiag", None) for finder in sys.meta_path if hasattr(finder, "find_spec"))
