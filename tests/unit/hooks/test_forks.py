"""What hooks do around a fork of the process."""

import os
from collections.abc import Iterator

import pytest

from distdiag.errors import RAISE_OWN_ERRORS
from distdiag.hooks import _forks
from distdiag.hooks._patch import Undo


class Watch:
    """Keeps in mind what was done around forks."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def around(self) -> Undo:
        return _forks.around_forks(
            before=lambda: self.done.append("before"),
            after_in_parent=lambda: self.done.append("parent"),
            after_in_child=lambda: self.done.append("child"),
        )


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Watch the forks of a test."""
    made = Watch()
    undo = made.around()
    yield made
    undo()


def forked(watch: Watch, *, again: bool = False) -> str:
    """Return what was done, as a child sees it; perhaps as the child of that child."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        grandchild = os.fork() if again else 0
        if not grandchild:
            os.write(writer, " ".join(watch.done).encode())
        else:
            os.waitpid(grandchild, 0)
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as told:
        return told.read()


def test_parent_and_child_do_their_own_parts(watch: Watch) -> None:
    assert forked(watch) == "before child"

    assert watch.done == ["before", "parent"]


def test_child_has_nothing_to_do_when_it_forks_itself(watch: Watch) -> None:
    assert forked(watch, again=True) == "before child"


def test_nothing_is_done_once_it_is_undone() -> None:
    watch = Watch()
    watch.around()()

    assert forked(watch) == ""
    assert watch.done == []


def test_broken_preparation_does_not_keep_the_job_from_forking(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OSError("ours")

    monkeypatch.delenv(RAISE_OWN_ERRORS)
    undo = _forks.around_forks(before=broken, after_in_parent=broken, after_in_child=broken)

    assert forked(watch) == "before child"

    undo()
