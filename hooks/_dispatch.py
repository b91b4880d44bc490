"""Python kernels in front of a backend's own, where the dispatcher selects the backend."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from distdiag.hooks._patch import Undo

Kernel = Callable[..., Any]

BELOW = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
"""The keys that a call has still to pass when it goes on: intersect with the key set of the call."""


def redispatch(namespace: str, name: str) -> Kernel | None:
    """Return what sends a call of an operator on its way, None if this release has no such operator.

    It releases the interpreter lock while the operator blocks, unlike calling the backend's kernel by hand.
    """
    overload = getattr(getattr(getattr(torch.ops, namespace), name, None), "default", None)
    # The kernels take arguments by position alone.
    if overload is None or any(argument.kwarg_only for argument in overload._schema.arguments):
        return None
    send_on: Kernel = overload._handle.redispatch_boxed
    return send_on


def put_in_front(namespace: str, kernels: Mapping[str, Kernel]) -> Undo:
    """Register kernels for operators on ``BackendSelect``; no existing kernel is overridden."""
    make: Any = torch.library.Library
    library = make(namespace, "IMPL")
    for name, kernel in kernels.items():
        library.impl(name, kernel, "BackendSelect", with_keyset=True)
    return library._destroy  # type: ignore[no-any-return]


def is_traced(tensors: Any) -> bool:
    """Return whether a tensor, or the first of a list, is one without data: such a call only traces a program."""
    from torch._subclasses.fake_tensor import FakeTensor

    while isinstance(tensors, list | tuple):
        if not tensors:
            return False
        tensors = tensors[0]
    return isinstance(tensors, FakeTensor) or tensors.device.type == "meta"
