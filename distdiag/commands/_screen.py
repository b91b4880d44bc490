"""A terminal taken over for a while: drawn in full, keys read one by one, left as it was found."""

import os
import re
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterable
from types import FrameType, TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from distdiag.reporters._lines import Line

ENDED_BY = (signal.SIGTERM, signal.SIGHUP)
READ_BYTES = 1024
_KEY = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O[A-Z])|.", re.DOTALL)


class Screen:
    """Use it as a context: on leaving, whatever the reason, the terminal is as it was."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, screen=True, auto_refresh=False, transient=True)
        self._keyboard = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._modes: list[object] = []
        self._handlers: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        """Take the terminal over."""
        for number in ENDED_BY:
            self._handlers[number] = signal.signal(number, _leave)
        if self._keyboard is not None:
            self._modes = list(termios.tcgetattr(self._keyboard))
            tty.setcbreak(self._keyboard)
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)
        if self._keyboard is not None:
            termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._modes)  # type: ignore[arg-type] # as it was got
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type] # what signal() gave

    @property
    def size(self) -> tuple[int, int]:
        """Return columns and lines as they are now."""
        return self._console.width, self._console.height

    def draw(self, lines: Iterable[Line]) -> None:
        """Show these lines and nothing else."""
        drawn = Text("\n").join(Text.assemble(*((span.text, span.style) for span in line)) for line in lines)
        drawn.no_wrap = True
        self._live.update(drawn, refresh=True)

    def keys(self, seconds: float) -> list[str]:
        """Return the keys that were hit, as soon as there are any, at the latest after so many seconds."""
        if self._keyboard is None:
            time.sleep(max(seconds, 0.0))
            return []
        ready, _, _ = select.select([self._keyboard], [], [], max(seconds, 0.0))
        if not ready:
            return []
        typed = os.read(self._keyboard, READ_BYTES).decode(errors="ignore")
        return _KEY.findall(typed) if typed else ["q"]  # the terminal is gone


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
