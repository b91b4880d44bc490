"""The one place through which hooks reach into other people's code."""

import importlib
import importlib.util
import operator
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from distdiag.errors import RAISE_OWN_ERRORS
from distdiag.hooks._patch import Undo, observe, replace, together, when_imported


class Seen:
    """An observer that keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        self.told.append(("before", len(args), sorted(kwargs)))
        return "token"

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        self.told.append(("after", token, result, error))


class Broken:
    """An observer that cannot do its work."""

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        raise ValueError("before")

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        raise ValueError("after")


class Payload:
    """Something that a caller would like to see freed."""


def library(function: Callable[..., Any]) -> SimpleNamespace:
    return SimpleNamespace(function=function)


def fail(*_args: Any) -> None:
    raise KeyError("theirs")


def test_result_and_arguments_pass_through() -> None:
    owner, seen = library(lambda *args, **kwargs: (args, kwargs)), Seen()
    observe(owner, "function", seen)

    result = owner.function(1, 2, key=3)

    assert result == ((1, 2), {"key": 3})
    assert seen.told == [("before", 2, ["key"]), ("after", "token", result, None)]


def test_exception_passes_through_and_its_type_is_told() -> None:
    owner, seen = library(fail), Seen()
    observe(owner, "function", seen)

    with pytest.raises(KeyError, match="theirs"):
        owner.function()

    assert seen.told[-1] == ("after", "token", None, KeyError)


def test_broken_observer_does_not_reach_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RAISE_OWN_ERRORS)
    numbers = iter([1, 2])
    owner = library(lambda: next(numbers))
    observe(owner, "function", Broken())

    assert owner.function() == 1

    assert list(numbers) == [2]


def test_broken_observer_does_not_hide_the_callers_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RAISE_OWN_ERRORS)
    owner = library(fail)
    observe(owner, "function", Broken())

    with pytest.raises(KeyError, match="theirs"):
        owner.function()


def test_broken_observer_is_heard_where_own_errors_are_raised() -> None:
    owner = library(lambda: None)
    observe(owner, "function", Broken())

    with pytest.raises(ValueError, match="before"):
        owner.function()


def test_wrapper_does_not_keep_the_argument_of_a_failed_call_while_its_exception_lives() -> None:
    owner = library(operator.index)  # written in C: it has no frame of its own that would keep the argument
    observe(owner, "function", Seen())
    payload = Payload()
    alive = weakref.ref(payload)

    with pytest.raises(TypeError) as failed:
        owner.function(payload)
    del payload

    assert failed.value.__traceback__ is not None
    assert alive() is None


def test_wrapper_looks_like_what_it_wraps() -> None:
    owner = library(fail)

    observe(owner, "function", Seen())

    assert owner.function.__name__ == "fail"
    assert owner.function.__wrapped__ is fail


def test_undo_puts_the_original_back() -> None:
    owner = library(fail)

    observe(owner, "function", Seen())()

    assert owner.function is fail


def test_undo_leaves_what_somebody_patched_on_top() -> None:
    owner = library(fail)
    undo = observe(owner, "function", Seen())
    theirs = owner.function = lambda: "theirs"

    undo()

    assert owner.function is theirs


def test_undo_deletes_what_was_inherited() -> None:
    class Base:
        def method(self) -> str:
            return "base"

    class Derived(Base):
        pass

    undo = observe(Derived, "method", Seen())
    assert "method" in vars(Derived)

    undo()

    assert "method" not in vars(Derived)
    assert Derived().method() == "base"


def test_undos_run_from_the_last_to_the_first() -> None:
    owner = SimpleNamespace(value=1)

    together([replace(owner, "value", 2), replace(owner, "value", 3)])()

    assert owner.value == 1


def test_undo_that_fails_does_not_keep_the_others_from_running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RAISE_OWN_ERRORS)
    owner = SimpleNamespace(value=1)

    together([replace(owner, "value", 2), lambda: fail()])()

    assert owner.value == 1


# ---- modules that are imported later -----------------------------------------------------------------------------
@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the name of a module that nobody has imported yet."""
    (tmp_path / "late_library.py").write_text("def function(): return 'original'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "late_library"
    sys.modules.pop("late_library", None)


def replacing(module: ModuleType) -> Undo:
    return replace(module, "function", lambda: "watched")


def test_module_is_watched_as_soon_as_it_is_imported(late: str) -> None:
    when_imported(late, replacing)
    assert late not in sys.modules

    module = importlib.import_module(late)

    assert module.function() == "watched"


def test_module_that_is_there_is_watched_at_once(late: str) -> None:
    module = importlib.import_module(late)

    undo = when_imported(late, replacing)

    assert module.function() == "watched"
    undo()
    assert module.function() == "original"


def test_undo_after_the_import_restores_the_module(late: str) -> None:
    undo = when_imported(late, replacing)
    module = importlib.import_module(late)

    undo()

    assert module.function() == "original"


def test_undo_before_the_import_leaves_no_trace(late: str) -> None:
    finders = list(sys.meta_path)
    undo = when_imported(late, replacing)

    undo()

    assert sys.meta_path == finders
    assert importlib.import_module(late).function() == "original"


def test_import_system_is_as_before_once_the_module_was_imported(late: str) -> None:
    finders = list(sys.meta_path)
    when_imported(late, replacing)

    importlib.import_module(late)

    assert sys.meta_path == finders


def test_asking_whether_a_module_exists_does_not_use_up_the_watch(late: str) -> None:
    when_imported(late, replacing)
    assert importlib.util.find_spec(late) is not None

    module = importlib.import_module(late)

    assert module.function() == "watched"


def test_module_that_does_not_exist_is_missing_as_ever() -> None:
    undo = when_imported("no_such_library", replacing)

    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        importlib.import_module("no_such_library")

    undo()


def test_broken_installation_does_not_break_the_import(late: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RAISE_OWN_ERRORS)

    def install(module: ModuleType) -> Undo:
        raise ValueError("ours")

    when_imported(late, install)

    assert importlib.import_module(late).function() == "original"
