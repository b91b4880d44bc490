"""What keys do to what is shown of a watched job."""

import dataclasses

from distdiag.live.snapshot import Snapshot
from distdiag.reporters.live import SORTS, Choice, is_folded, shown_ranks

ESCAPE, ENTER, BACKSPACE = "\x1b", ("\r", "\n"), ("\x7f", "\b")
UP, DOWN = ("\x1b[A", "\x1bOA", "k"), ("\x1b[B", "\x1bOB", "j")
QUIT = ("q", "\x03", "\x04")


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
