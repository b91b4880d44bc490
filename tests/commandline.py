"""The command line, called in this process: for tests of what a command says, not of how a process starts and ends."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from distdiag.__main__ import main


def distdiag(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command as ``python -m distdiag`` would, without what it costs to import its libraries again."""
    argv = ["distdiag", *map(str, arguments)]
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", argv),
        mock.patch.dict(os.environ, {"COLUMNS": "120"}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    assert isinstance(ended.value.code, int)
    return subprocess.CompletedProcess(argv, ended.value.code, out.getvalue(), err.getvalue())
