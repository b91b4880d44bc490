"""Entry point of ``distdiag`` and of ``python -m distdiag``.

``distdiag run`` becomes the training process, which never pays for the libraries of the command line,
so it is told apart here, before they are imported.
"""

import gc
import os
import sys

COLLECT_AFTER = 50_000
"""Objects: each search for cycles looks through a run's records, and analysis leaves few; 3 to 5 % of its time."""


def main() -> None:
    """Run a script with recording on, or hand over to the command line."""
    if sys.argv[1:2] == ["run"]:
        from distdiag.commands import run

        run.main(sys.argv[2:])
    else:
        if sys.argv[1:2] == ["analyze"]:  # others start programs, which would inherit it
            # Analysis multiplies no matrices: threads that stand by for it cost a tenth of a second.
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
            gc.set_threshold(COLLECT_AFTER)
        from distdiag import cli

        try:
            cli.main()
        finally:
            gc.freeze()  # what was read goes with the process: nobody need look through it for cycles first


if __name__ == "__main__":
    main()
