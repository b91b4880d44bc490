"""A model as a Python function builds it: on the meta device, where tensors have shapes and no memory."""

import importlib
import importlib.util
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

from distdiag.errors import DistdiagError
from distdiag.memory_estimate.model import Block, Model, Split, Weight

OUTSIDE = -1
"""Number of what stands in no block."""


def build(place: str, *, fused_attention: bool = True) -> Model:
    """Return the model that ``file.py:function`` or ``package.module:function`` builds.

    The function takes nothing and returns a module, or a module and example inputs; with these a forward is run on
    the meta device, and what autograd saves is counted; the meta device itself has no fused attention, so that
    ``scaled_dot_product_attention`` is replaced by one unless told otherwise. Raises ``DistdiagError`` where that
    cannot be done.
    """
    try:
        import torch
    except ImportError as error:
        raise DistdiagError(
            "a Python module needs torch", "pip install 'distdiag[torch]', or describe the model by numbers"
        ) from error
    function = _function(place)
    with torch.device("meta"):
        made = _called(function, place)
        module, *inputs = made if isinstance(made, tuple) else (made,)
        if not isinstance(module, torch.nn.Module):
            raise DistdiagError(
                f"{place} returned {type(module).__name__}, not a torch.nn.Module",
                "return the module, or the module and example inputs",
            )
        blocks = _blocks(module)
        saved, came_in = _measured(module, blocks, inputs, fused_attention) if inputs else ({}, {})
    inside = {name for block in blocks for name, _ in block}
    described = []
    for number, parameters in enumerate(blocks):
        described.append(
            Block(
                weights=_weights(parameters),
                measured_bytes=sum(saved.get(number, ())) if inputs else None,
                largest_bytes=max(saved.get(number, ()), default=0),
                input_bytes=came_in.get(number, 0),
            )
        )
    outside = [(name, each) for name, each in module.named_parameters() if name not in inside]
    return Model(
        name=type(module).__name__,
        embedding=_weights(outside),
        blocks=tuple(described),
        origin=place,
        measured_outside_bytes=sum(saved.get(OUTSIDE, ())),
    )


def _function(place: str) -> Callable[[], Any]:
    where, colon, name = place.rpartition(":")
    if not colon or not where or not name:
        raise DistdiagError(f"{place} names no function", "write file.py:function or package.module:function")
    module = _module(where)
    function = getattr(module, name, None)
    if not callable(function):
        raise DistdiagError(f"{where} has no function {name}", "write file.py:function")
    return function  # type: ignore[no-any-return]  # whatever the user's module holds under that name


def _module(where: str) -> ModuleType:
    try:
        if not where.endswith(".py"):
            sys.path.insert(0, str(Path.cwd()))
            return importlib.import_module(where)
        path = Path(where)
        if not path.is_file():
            raise DistdiagError(f"no such file: {where}", "write file.py:function")
        sys.path.insert(0, str(path.resolve().parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise DistdiagError(f"{where} cannot be loaded", "write file.py:function")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
    except (ImportError, SyntaxError, AttributeError, NameError, TypeError, ValueError, OSError) as error:
        raise DistdiagError(f"{where} cannot be loaded: {error}", "does it run by itself?") from error
    return module


def _called(function: Callable[[], Any], place: str) -> Any:
    try:
        return function()
    except (RuntimeError, TypeError, ValueError, KeyError, AttributeError, OSError, NotImplementedError) as error:
        raise DistdiagError(
            f"{place} failed on the meta device: {type(error).__name__}: {str(error).splitlines()[0]}",
            "it is called without arguments, and tensors have no values there",
        ) from error


Named = Sequence[tuple[str, Any]]


def _blocks(module: Any) -> Sequence[Named]:
    """Return the parameters of the list of modules that holds most; one block where there is no list."""
    import torch

    lists = [
        (name, each) for name, each in module.named_modules() if isinstance(each, torch.nn.ModuleList) and len(each) > 1
    ]
    if not lists:
        return [list(module.named_parameters())]
    name, most = max(lists, key=lambda item: sum(each.numel() for each in item[1].parameters()))
    prefix = f"{name}." if name else ""
    return [
        [(f"{prefix}{number}.{own}", each) for own, each in child.named_parameters()]
        for number, child in enumerate(most)
    ]


def _weights(parameters: Iterable[tuple[str, Any]]) -> tuple[Weight, ...]:
    """Return parameters as weights; that tensor parallelism cuts all matrices is an assumption."""
    weights = []
    for name, parameter in parameters:
        rows, *rest = tuple(parameter.shape) or (1,)
        columns = math.prod(rest)
        split = Split.ROWS if rest else Split.NONE
        weights.append(Weight(name=name, rows=rows, columns=columns, split=split))
    return tuple(weights)


def _measured(
    module: Any, blocks: Sequence[Named], inputs: Sequence[Any], fused_attention: bool
) -> tuple[dict[int, list[int]], dict[int, int]]:
    """Run a forward and return the sizes that autograd saved in each block and outside, and what came into a block."""
    import torch

    owners = {id(parameter): number for number, block in enumerate(blocks) for _, parameter in block}
    weights = {each.untyped_storage()._cdata for each in module.parameters()}
    weights |= {each.untyped_storage()._cdata for each in module.buffers()}
    saved: dict[int, list[int]] = {}
    came_in: dict[int, int] = {}
    kept: list[Any] = []  # as long as they live, no other storage can have their address
    seen: set[int] = set()
    inside = [OUTSIDE]

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights | seen:
            seen.add(storage._cdata)
            kept.append(storage)
            saved.setdefault(inside[-1], []).append(storage.nbytes())
        return tensor

    def enter(number: int, arguments: tuple[Any, ...]) -> None:
        inside.append(number)
        tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
        came_in[number] = sum(each.numel() * each.element_size() for each in tensors)

    def leave(*_: object) -> None:
        inside.pop()

    with ExitStack() as hooks:
        for child in module.modules():
            own = {owners.get(id(each), OUTSIDE) for each in child.parameters()}
            if len(own) == 1 and OUTSIDE not in own and _is_block(child, blocks[number := own.pop()]):
                hooks.enter_context(
                    _removed(child.register_forward_pre_hook(lambda _, got, number=number: enter(number, got)))
                )
                hooks.enter_context(_removed(child.register_forward_hook(leave)))
        if fused_attention:
            hooks.enter_context(_fused_attention())
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = _called(lambda: module(*inputs), f"the forward of {type(module).__name__}")
    del result
    return saved, came_in


def _fused_attention() -> Any:
    """Return a mode in which attention keeps queries, keys, values, its output and a statistic, but no scores."""
    import torch
    from torch.overrides import TorchFunctionMode

    plain = torch.nn.functional.scaled_dot_product_attention
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

    class Fused(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is plain:
                return fused(*args[:3], is_causal=bool((kwargs or {}).get("is_causal")))[0]
            return function(*args, **(kwargs or {}))

    return Fused()


def _is_block(child: Any, block: Named) -> bool:
    return {id(each) for each in child.parameters()} == {id(each) for _, each in block}


def _removed(handle: Any) -> ExitStack:
    stack = ExitStack()
    stack.callback(handle.remove)
    return stack
