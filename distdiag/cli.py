"""The command line: one line per command, and the one place where errors become text."""

import os
import sys
from typing import NoReturn

import click

from distdiag.commands import (
    agent,
    analyze,
    checkpoint,
    compare,
    ctl,
    demo,
    doctor,
    explain,
    help,
    memory,
    pack,
    replay_info,
    stacks,
    trace,
    watch,
)
from distdiag.errors import DistdiagError

CANNOT = 2
"""Exit code for what cannot be analysed and for bad usage."""
INTERRUPTED = 130
READER_GONE = 141
"""What a shell reports for SIGPIPE."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="distdiag")
def cli() -> None:
    """Say why a distributed PyTorch training run hangs, died or is slow.

    \b
    distdiag run train.py …   run a script with recording on (no code change)
    distdiag analyze logs/    say what happened first, on which rank, and what to do
    distdiag watch logs/      watch a running job, and be told when it goes wrong
    distdiag stacks --local   show where all ranks on this host are, as one tree
    """


@click.command(
    "run", add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run_command(arguments: tuple[str, ...]) -> None:
    """Run a training script with recording on."""
    from distdiag.commands import run

    run.main(list(arguments))


cli.add_command(analyze.command)
cli.add_command(watch.command)
cli.add_command(ctl.command)
cli.add_command(agent.command)
cli.add_command(explain.command)
cli.add_command(help.command)
cli.add_command(stacks.command)
cli.add_command(replay_info.command)
cli.add_command(trace.command)
cli.add_command(pack.command)
cli.add_command(compare.command)
cli.add_command(checkpoint.command)
cli.add_command(memory.command)
cli.add_command(demo.command)
cli.add_command(doctor.command)
cli.add_command(run_command)


def main() -> NoReturn:
    """Run the command line; whatever goes wrong becomes an exit code and a line, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal in an odd locale is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    sys.exit(_run())


def _run() -> int:
    try:
        code = cli(prog_name="distdiag", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return CANNOT
    except click.Abort:
        return INTERRUPTED
    except DistdiagError as error:
        return _explain(error.message, error.hint)
    except BrokenPipeError:
        # The interpreter flushes stdout at exit and would complain about the closed pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE
    except OSError as error:
        return _explain(f"{error.strerror or error}: {error.filename}" if error.filename else str(error), "")
    return code if isinstance(code, int) else 0


def _explain(message: str, hint: str) -> int:
    click.echo(f"error: {message}", err=True)
    if hint:
        click.echo(f"hint: {hint}", err=True)
    return CANNOT
