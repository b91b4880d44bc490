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
        watch = _measured(module, blocks, inputs, fused_attention) if inputs else None
    return _described(module, blocks, watch, place)


def _described(module: Any, blocks: "Sequence[Named]", watch: "_Watch | None", place: str) -> Model:
    inside = {name for block in blocks for name, _ in block}
    saved = watch.saved if watch else {}
    described = tuple(
        Block(
            weights=_weights(parameters),
            measured_bytes=sum(saved.get(number, ())) if watch else None,
            largest_bytes=max(saved.get(number, ()), default=0),
            input_bytes=watch.came_in.get(number, 0) if watch else 0,
        )
        for number, parameters in enumerate(blocks)
    )
    return Model(
        name=type(module).__name__,
        embedding=_weights((name, each) for name, each in module.named_parameters() if name not in inside),
        blocks=described,
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


class _Watch:
    """What autograd saves while a forward runs: the sizes by block, and what came into each block."""

    def __init__(self, module: Any) -> None:
        kept = (*module.parameters(), *module.buffers())
        self.saved: dict[int, list[int]] = {}
        self.came_in: dict[int, int] = {}
        self._not_activations = {each.untyped_storage()._cdata for each in kept}
        self._seen: dict[int, Any] = {}  # as long as the storages live, no other can have their address
        self._inside = [OUTSIDE]

    def pack(self, tensor: Any) -> Any:
        """Count the storage of a tensor once, for the block that runs."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._not_activations and storage._cdata not in self._seen:
            self._seen[storage._cdata] = storage
            self.saved.setdefault(self._inside[-1], []).append(storage.nbytes())
        return tensor

    def enter(self, number: int, arguments: tuple[Any, ...]) -> None:
        """Begin a block."""
        import torch

        self._inside.append(number)
        tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
        self.came_in[number] = sum(each.numel() * each.element_size() for each in tensors)

    def leave(self, *_: object) -> None:
        """End a block."""
        self._inside.pop()


def _measured(module: Any, blocks: Sequence[Named], inputs: Sequence[Any], fused_attention: bool) -> _Watch:
    """Run a forward and return what was seen of it."""
    import torch

    owners = {id(parameter): number for number, block in enumerate(blocks) for _, parameter in block}
    watch = _Watch(module)
    with ExitStack() as hooks:
        for child in module.modules():
            own = {owners.get(id(each), OUTSIDE) for each in child.parameters()}
            if len(own) == 1 and OUTSIDE not in own and _is_block(child, blocks[number := own.pop()]):
                entered = child.register_forward_pre_hook(lambda _, got, number=number: watch.enter(number, got))
                hooks.callback(entered.remove)
                hooks.callback(child.register_forward_hook(watch.leave).remove)
        if fused_attention:
            hooks.enter_context(_fused_attention())
        with torch.autograd.graph.saved_tensors_hooks(watch.pack, lambda tensor: tensor):
            result = _called(lambda: module(*inputs), f"the forward of {type(module).__name__}")
    del result
    return watch


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
