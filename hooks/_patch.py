"""How hooks reach into other people's libraries: guarded, complete to undo, and only once they are loaded."""

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FunctionType, ModuleType
from typing import Any, Protocol

from distdiag.errors import guard, guarded

Undo = Callable[[], None]

_ABSENT = object()


class Observer(Protocol):
    """Watches calls of one function; neither method can reach the caller, whatever it does."""

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run before the call; what it returns comes back in ``after``."""

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        """Run after the call with its result, or with the type of the exception it raised."""


def observe(owner: Any, name: str, observer: Observer, *, in_graphs: bool = False) -> Undo:
    """Wrap ``owner.name`` so that ``observer`` sees each call; return what takes the wrapper off again.

    The original is called exactly once; its result and its exceptions pass through untouched, and the
    wrapper keeps no reference to either. ``in_graphs`` is for functions that belong into compiled graphs: there
    the original stands, unseen, because a wrapper would break the graph.
    """
    original = getattr(owner, name)
    watching = guard(f"watch {name}")
    before = guarded(f"watch {name}", observer.before)  # FSDP's methods are watched hundreds of times in a step

    @functools.wraps(original)
    def observed(*args: Any, **kwargs: Any) -> Any:
        token = before(args, kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            kind = type(error)
            # the traceback holds this frame, and with it the arguments: tensors, perhaps
            del args, kwargs, error
            with watching:
                observer.after(token, None, kind)
            raise
        with watching:
            observer.after(token, result, None)
        return result

    undo = replace(owner, name, observed)
    if isinstance(owner, ModuleType):
        undo = together([undo, _rebind(owner, original, observed)])
    if not in_graphs:
        return undo
    return together([when_imported("torch._dynamo.decorators", partial(_trace_as, observed, original)), undo])


def _trace_as(observed: Callable[..., Any], original: Callable[..., Any], decorators: ModuleType) -> Undo:
    """Let graphs that are compiled hold the original: a wrapper would break them, or forbid the whole of a graph."""
    decorators.substitute_in_graph(observed, skip_signature_check=True)(original)
    return together(())  # once the wrapper is off, nobody looks for what stands for it


def replace(owner: Any, name: str, substitute: Any) -> Undo:
    """Set ``owner.name``; return what puts the original back, unless somebody else patched on top."""
    held = vars(owner).get(name, _ABSENT)
    setattr(owner, name, substitute)

    def undo() -> None:
        if vars(owner).get(name) is not substitute:
            return  # somebody wrapped the wrapper: taking it out would break theirs
        if held is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, held)

    return undo


def _rebind(owner: ModuleType, original: Any, substitute: Any) -> Undo:
    """Let modules that imported a function of ``owner`` by its name use what stands for it.

    Those of the library itself are left alone: what matters of them is watched where they define it.
    """
    package = owner.__name__.partition(".")[0]
    places = [
        (names, name)
        for names in _namespaces(package)
        if id(original) in map(id, list(names.values()))  # a loop in C: there are a hundred thousand names
        for name, value in list(names.items())
        if value is original
    ]
    for names, name in places:
        names[name] = substitute

    def undo() -> None:
        for names, name in places:
            if names.get(name) is substitute:
                names[name] = original

    return undo


def _namespaces(package: str) -> Iterator[dict[str, Any]]:
    """Yield the names of all modules but those of a package and Python's own."""
    passed_over = {package, *sys.stdlib_module_names}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in passed_over and isinstance(module, ModuleType):
            yield vars(module)
    # Where multiprocessing imported the main module anew, its functions look names up elsewhere than in the module.
    functions = [each for each in vars(sys.modules.get("__mp_main__", sys)).values() if isinstance(each, FunctionType)]
    yield from {id(each.__globals__): each.__globals__ for each in functions}.values()


def together(undos: Sequence[Undo]) -> Undo:
    """Return one undo that runs all of them, the last first; one that fails does not stop the others."""

    def undo() -> None:
        for each in reversed(undos):
            with guard("take a hook off"):
                each()

    return undo


def when_imported(name: str, install: Callable[[ModuleType], Undo]) -> Undo:
    """Run ``install`` with module ``name`` now if it is loaded, else right after somebody loads it.

    distdiag must not load libraries that the job does not use: importing some of them takes seconds.
    A part of a package is watched once the whole package is loaded: before, its parts lack one another.
    """
    package = name.partition(".")[0]
    if package != name and package not in sys.modules:
        return when_imported(package, lambda _: when_imported(name, install))
    module = sys.modules.get(name)
    if module is not None and not _is_loading(module):
        return install(module)
    finder = _Finder(name, install)
    sys.meta_path.insert(0, finder)
    return finder.undo


def _is_loading(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the import system find module ``name`` as ever and runs ``install`` when it has been executed."""

    def __init__(self, name: str, install: Callable[[ModuleType], Undo]) -> None:
        self._name = name
        self._install = install
        self._undo: Undo | None = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name or self not in sys.meta_path:
            return None
        # Asking for a spec need not lead to an import: the watch ends when the module is executed.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                self._follow(spec)
                return spec
        return None

    def _follow(self, spec: importlib.machinery.ModuleSpec) -> None:
        loader = spec.loader
        if loader is None:
            return
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if self._forget():
                with guard(f"watch {self._name}"):
                    self._undo = self._install(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]  # this loader serves this module alone

    def _forget(self) -> bool:
        """Leave the import system; return whether this finder still was in it."""
        waiting = self in sys.meta_path
        if waiting:
            sys.meta_path.remove(self)
        return waiting

    def undo(self) -> None:
        self._forget()
        if self._undo is not None:
            self._undo()
            self._undo = None
