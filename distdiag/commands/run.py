"""``distdiag run``: run a training script with recording on, without a change to it.

This is the training process: only the standard library and the recording side are imported here.
"""

import optparse
import sys
import traceback

import distdiag
from distdiag import settings
from distdiag.commands import _launched, _program
from distdiag.errors import DistdiagError

USAGE = """%prog [OPTIONS] SCRIPT [ARGS]...
       %prog [OPTIONS] -m MODULE [ARGS]..."""

DESCRIPTION = (
    "Run a training script with recording on, exactly as python would run it. "
    "Works on both sides of a launcher: torchrun --nproc-per-node 8 -m distdiag run train.py, or "
    "distdiag run torchrun --nproc-per-node 8 train.py. Ranks that the script itself starts are recorded as well."
)


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
        _launched.follow(resolved)
    except DistdiagError as error:
        reason = error.message
    if not distdiag.is_recording() and not settings.is_off():
        sys.stderr.write(f"distdiag: nothing is recorded ({reason}); the script runs without it\n")
