"""The command line: one line per command, and the one place where errors become text."""

import importlib
import os
import sys
from typing import NoReturn

import click

from distdiag.errors import DistdiagError

CANNOT = 2
"""Exit code for what cannot be analysed and for bad usage."""
INTERRUPTED = 130
READER_GONE = 141
"""What a shell reports for SIGPIPE."""


COMMANDS = (
    "agent",
    "analyze",
    "checkpoint",
    "compare",
    "ctl",
    "demo",
    "doctor",
    "explain",
    "help",
    "memory",
    "pack",
    "replay-info",
    "stacks",
    "trace",
    "watch",
)
"""Each is the ``command`` of a module of ``distdiag.commands``."""


class _Commands(click.Group):
    """Imports a command when it is asked for: a verdict does not wait for the libraries of all others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*COMMANDS, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module = importlib.import_module(f"distdiag.commands.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
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
