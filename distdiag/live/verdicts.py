"""The analyzers' verdict on the logs of a running job, in a process of its own: watching must not wait for it."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

DEADLINE_SECONDS = 120.0
ATTEMPTS = 3
NOTHING_FOUND = frozenset({"healthy", "insufficient-evidence"})


class Investigator:
    """Asks for one verdict at a time; while none is found, again after a while."""

    def __init__(self, logs: Path, command: tuple[str, ...] = (sys.executable, "-m", "distdiag", "analyze")) -> None:
        self._command = (*command, str(logs), "--format", "json")
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._began = 0.0
        self._left = 0

    @property
    def busy(self) -> bool:
        """Return whether a verdict may still come."""
        return self._process is not None or self._left > 0

    def ask(self) -> None:
        """Want a verdict on the logs as they are now."""
        self._left = ATTEMPTS

    def verdict(self) -> dict[str, Any] | None:
        """Return a verdict once when it is there; None while there is none, or where nothing is found."""
        if self._process is None:
            if self._left:
                self._left -= 1
                self._start()
            return None
        if self._process.poll() is None:
            if time.monotonic() - self._began > DEADLINE_SECONDS:
                self.close()
            return None
        return self._finished()

    def close(self) -> None:
        """End what is running."""
        self._left = 0
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._output is not None:
            self._output.close()
        self._process = self._output = None

    def _start(self) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - open until the process has ended
        self._began = time.monotonic()
        self._process = subprocess.Popen(self._command, stdout=self._output, stderr=subprocess.DEVNULL)

    def _finished(self) -> dict[str, Any] | None:
        output, self._output, self._process = self._output, None, None
        if output is None:
            return None
        with output:
            output.seek(0)
            try:
                verdict = json.loads(output.read())["verdict"]
            except (ValueError, KeyError):  # the logs were not fit to be analysed just then
                return None
        if not isinstance(verdict, dict) or verdict.get("name") in NOTHING_FOUND:
            return None
        self._left = 0
        return verdict
