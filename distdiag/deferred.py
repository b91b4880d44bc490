"""Libraries that take long to import, imported when they are first used: a verdict seldom needs all of them.

Modules that can do without one most of the time write::

    if TYPE_CHECKING:
        import ibis
    else:
        ibis = deferred("ibis")

and evaluate no annotations, so that naming a type of the library is no use of it.
"""

import importlib
from typing import Any


class _Deferred:
    """Stands for a module until something of it is used; then hands out what the module holds."""

    def __init__(self, name: str) -> None:
        self._module_name = name

    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib.import_module(self._module_name), name)
        setattr(self, name, value)  # the next time it is found without asking
        return value


def deferred(name: str) -> Any:
    """Return what can be used like the module ``name``, which is imported with its first use."""
    return _Deferred(name)
