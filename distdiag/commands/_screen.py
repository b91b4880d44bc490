"""A terminal taken over for a while: drawn in full, keys read one by one and followed, left as it was found."""

import dataclasses
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

from distdiag.live.snapshot import Snapshot
from distdiag.reporters._lines import Line
from distdiag.reporters.live import SORTS, Choice, is_folded, shown_ranks

ESCAPE, ENTER, BACKSPACE = "\x1b", ("\r", "\n"), ("\x7f", "\b")
UP, DOWN = ("\x1b[A", "\x1bOA", "k"), ("\x1b[B", "\x1bOB", "j")
QUIT = ("q", "\x03", "\x04")
ENDED_BY = (signal.SIGTERM, signal.SIGHUP)
READ_BYTES = 1024
_KEY = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O[A-Z])|.", re.DOTALL)


def after(choice: Choice, key: str, snapshot: Snapshot) -> Choice | None:
    """Return what is shown after a key; None to leave."""
    if choice.typing:
        return _typed(choice, key)
    if key in QUIT:
        return None
    if key == "p":
        return dataclasses.replace(choice, paused=not choice.paused)
    rows = shown_ranks(snapshot, choice)
    if key in UP or key in DOWN:
        selected = min(max(choice.selected + (1 if key in DOWN else -1), 0), max(len(rows) - 1, 0))
        opened = rows[selected].rank if choice.opened is not None and rows else choice.opened
        return dataclasses.replace(choice, selected=selected, opened=opened)
    if choice.opened is not None:
        return dataclasses.replace(choice, opened=None) if key in (ESCAPE, *BACKSPACE) else choice
    return _in_overview(choice, key, snapshot)


def _in_overview(choice: Choice, key: str, snapshot: Snapshot) -> Choice:
    if key == "s":
        following = SORTS[(SORTS.index(choice.sort) + 1) % len(SORTS)]
        return dataclasses.replace(choice, sort=following, selected=0)
    if key == "f":
        return dataclasses.replace(choice, typing=True, filter="", selected=0)
    if key == "n":
        return dataclasses.replace(choice, by_node=not is_folded(snapshot, choice), selected=0)
    if key == ESCAPE:
        return dataclasses.replace(choice, filter="", selected=0)
    rows = shown_ranks(snapshot, choice)
    if key in ENTER and choice.selected < len(rows):
        chosen = rows[choice.selected]
        if is_folded(snapshot, choice):
            return dataclasses.replace(choice, by_node=False, filter=chosen.host, selected=0)
        return dataclasses.replace(choice, opened=chosen.rank)
    return choice


def _typed(choice: Choice, key: str) -> Choice:
    if key in ENTER:
        return dataclasses.replace(choice, typing=False)
    if key == ESCAPE:
        return dataclasses.replace(choice, typing=False, filter="")
    if key in BACKSPACE:
        return dataclasses.replace(choice, filter=choice.filter[:-1])
    if key.isprintable():
        return dataclasses.replace(choice, filter=choice.filter + key, selected=0)
    return choice


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
