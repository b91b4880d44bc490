"""Run a script or module as ``__main__``, the way the interpreter would."""

import builtins
import os
import shutil
import sys
import types
import zipfile
from dataclasses import dataclass
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec

from distdiag.errors import DistdiagError

MAX_FIRST_LINE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What the interpreter needs to know to run something as ``__main__``."""

    argv0: str
    search_path: str
    """What ``sys.path`` begins with."""
    file: str
    code: types.CodeType
    loader: object
    spec: ModuleSpec | None = None


def find_script(path: str) -> Program:
    """Return the program that ``python PATH`` would run: a file, or a folder or archive with ``__main__``.

    What is no such path but a command of Python's, as launchers are, is that command.
    """
    path = path if os.path.exists(path) else _command(path)
    if os.path.isdir(path) or (os.path.isfile(path) and zipfile.is_zipfile(path)):
        folder = os.path.abspath(path)
        return _from_spec(PathFinder.find_spec("__main__", [folder]), asked=path, argv0=path, search_path=folder)
    if not os.path.isfile(path):
        raise _no_script(path)
    file = os.path.abspath(path)
    loader = SourceFileLoader("__main__", file)
    return Program(
        argv0=path,
        search_path=os.path.dirname(os.path.realpath(path)),
        file=file,
        code=loader.source_to_code(loader.get_data(file), file),
        loader=loader,
    )


def _command(name: str) -> str:
    """Return the script behind a command such as torchrun; raises ``DistdiagError`` where there is none of Python's."""
    # Those of the environment that runs now come first, whether its folder is on the path or not.
    beside = os.path.dirname(sys.executable)
    path = os.pathsep.join((beside, os.environ.get("PATH", os.defpath)))
    file = shutil.which(name, os.F_OK | os.X_OK | os.R_OK, path)
    if file is None:
        raise _no_script(name)
    with open(file, "rb") as start:
        first = start.readline(MAX_FIRST_LINE)
    if first.startswith(b"#!") and b"python" in first:
        return file
    python = os.path.basename(name).startswith("python")
    raise DistdiagError(
        f"{name} is no script of Python's",
        "leave it out: distdiag run train.py" if python else "put distdiag run behind it, before the training script",
    )


def _no_script(path: str) -> DistdiagError:
    return DistdiagError(f"no such script: {path}", "give the path of a script, or -m and the name of a module")


def find_module(name: str) -> Program:
    """Return the program that ``python -m NAME`` would run."""
    directory = os.getcwd()
    use_search_path(directory)
    try:
        spec = find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = find_spec(f"{name}.__main__")
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # a package on the way there misses something else
        spec = None
    except ValueError as error:
        raise DistdiagError(f"cannot run module {name}: {error}", "a module is named as import names it") from error
    return _from_spec(spec, asked=name, argv0=None, search_path=directory)


def _from_spec(spec: ModuleSpec | None, *, asked: str, argv0: str | None, search_path: str) -> Program:
    loader = spec.loader if spec else None
    code = loader.get_code(spec.name) if spec and isinstance(loader, InspectLoader) else None
    if spec is None or code is None:
        raise DistdiagError(f"no module to run in {asked}", "python -m finds modules from the working directory")
    file = spec.origin or asked
    return Program(argv0=argv0 or file, search_path=search_path, file=file, code=code, loader=loader, spec=spec)


def use_search_path(directory: str) -> None:
    """Begin ``sys.path`` with ``directory``, unless the interpreter was told not to put one there."""
    if not sys.flags.safe_path:
        sys.path[0] = directory


def execute(program: Program) -> None:
    """Run ``program`` as a fresh ``__main__``; what it raises, ``SystemExit`` too, passes through."""
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __builtins__=builtins,
        __cached__=program.spec.cached if program.spec else None,
        __file__=program.file,
        __loader__=program.loader,
        __package__=program.spec.parent if program.spec else None,
        __spec__=program.spec,
    )
    # Stays there after the end: threads and atexit functions of the program may still look it up.
    sys.modules["__main__"] = main
    exec(program.code, main.__dict__)


def show_tracebacks_from(file: str) -> None:
    """Leave the frames that started a program out of the tracebacks of its uncaught exceptions."""

    def excepthook(kind: type[BaseException], error: BaseException, stack: types.TracebackType | None) -> None:
        start = stack
        while start is not None and start.tb_frame.f_code.co_filename != file:
            start = start.tb_next
        sys.__excepthook__(kind, error.with_traceback(start or stack), start or stack)

    sys.excepthook = excepthook
