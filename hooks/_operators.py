"""The c10d operators: Python kernels in front of them, where their arguments stand, and what ranks have to agree on.

``key`` is on the path of every call: it returns something hashable that tells calls of different
signatures apart, and nothing else. ``describe`` runs once per signature.
"""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed import ReduceOp

from distdiag import events
from distdiag.hooks._patch import Undo

Kernel = Callable[..., Any]
BELOW = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
"""The keys that a call has still to pass when it goes on: intersect with the key set of the call."""
RedOpType = ReduceOp.RedOpType
Arguments = tuple[Any, ...]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One ``c10d`` operator; argument positions as in its schema."""

    schema: str
    op: str
    """The name that users know."""
    group: int = 1
    tensor: int = 0
    """Argument whose first tensor tells the device; the input or the buffer that exists on every rank."""
    output: int | None = None
    """Argument with the outputs, where these differ from the input."""
    reduce_op: int | None = None
    root: int | None = None
    peer: int | None = None
    tag: int | None = None
    output_splits: int | None = None
    input_splits: int | None = None
    p2p: bool = False
    agree: str = "numel"
    """What must be equal on all members beside operator and dtype: ``numel`` of the buffer, ``root``,
    ``numel root``, ``outputs`` (the list of output sizes) or nothing."""
    key: Callable[[Arguments], Any]


def _first_shape(args: Arguments) -> Any:
    tensor = args[0][0]
    return tensor.shape, tensor.dtype, type(tensor), tensor.device


def _kind(tensor: Any) -> Any:
    # Tracing runs the same lines with fake and meta tensors of the same shape.
    return tensor.dtype, type(tensor), tensor.device


def _shapes(tensors: Any) -> tuple[Any, ...]:
    return tuple([tensor.shape for tensor in tensors])


def _list(args: Arguments) -> Any:
    return _shapes(args[0]), *_kind(args[0][0])


def _rooted(position: int) -> Callable[[Arguments], Any]:
    return lambda args: (args[0][0].shape, *_kind(args[0][0]), args[position])


def _two_tensors(args: Arguments) -> Any:
    # In full: FSDP makes most of these calls, and a star would cost it a quarter more.
    tensor = args[0]
    return tensor.shape, args[1].shape, tensor.dtype, type(tensor), tensor.device


def _outputs_and_inputs(args: Arguments) -> Any:
    return _nested(args[0]), _nested(args[1]), *_kind(_first_of(args[1], args[0]))


def _rooted_lists(args: Arguments) -> Any:
    return (*_outputs_and_inputs(args), args[3])


def _splits(args: Arguments) -> Any:
    return args[0].shape, args[1].shape, *_kind(args[0]), tuple(args[3]), tuple(args[4])


def _peer_and_tag(args: Arguments) -> Any:
    return args[0][0].shape, *_kind(args[0][0]), *args[2:4]


def _nothing(args: Arguments) -> Any:
    return None


def _nested(tensors: Any) -> tuple[Any, ...]:
    if tensors and isinstance(tensors[0], list | tuple):
        return tuple([_shapes(each) for each in tensors])
    return _shapes(tensors)


OPERATORS: tuple[Operator, ...] = (
    Operator(schema="allreduce_", op="all_reduce", reduce_op=2, key=_first_shape),
    Operator(schema="allreduce_coalesced_", op="all_reduce_coalesced", reduce_op=2, key=_list),
    Operator(schema="broadcast_", op="broadcast", root=2, agree="numel root", key=_rooted(2)),
    Operator(schema="reduce_", op="reduce", reduce_op=2, root=3, agree="numel root", key=_rooted(3)),
    Operator(
        schema="allgather_", op="all_gather", tensor=1, output=0, group=2, agree="outputs", key=_outputs_and_inputs
    ),
    Operator(schema="_allgather_base_", op="all_gather_into_tensor", tensor=1, output=0, group=2, key=_two_tensors),
    Operator(
        schema="allgather_coalesced_", op="all_gather_coalesced", tensor=1, output=0, group=2, key=_outputs_and_inputs
    ),
    Operator(
        schema="allgather_into_tensor_coalesced_",
        op="all_gather_into_tensor_coalesced",
        tensor=1,
        output=0,
        group=2,
        key=_outputs_and_inputs,
    ),
    Operator(
        schema="reduce_scatter_",
        op="reduce_scatter",
        tensor=1,
        output=0,
        group=2,
        reduce_op=3,
        key=_outputs_and_inputs,
    ),
    Operator(
        schema="_reduce_scatter_base_",
        op="reduce_scatter_tensor",
        tensor=1,
        output=0,
        group=2,
        reduce_op=3,
        key=_two_tensors,
    ),
    Operator(
        schema="reduce_scatter_tensor_coalesced_",
        op="reduce_scatter_tensor_coalesced",
        tensor=1,
        output=0,
        group=2,
        reduce_op=3,
        key=_outputs_and_inputs,
    ),
    Operator(schema="gather_", op="gather", tensor=1, output=0, group=2, root=3, agree="numel root", key=_rooted_lists),
    Operator(schema="scatter_", op="scatter", output=1, group=2, root=3, agree="root", key=_rooted_lists),
    Operator(schema="alltoall_", op="all_to_all", tensor=1, output=0, group=2, agree="", key=_outputs_and_inputs),
    Operator(
        schema="alltoall_base_",
        op="all_to_all_single",
        tensor=1,
        output=0,
        group=2,
        output_splits=3,
        input_splits=4,
        agree="",
        key=_splits,
    ),
    Operator(schema="barrier", op="barrier", agree="", key=_nothing),
    Operator(schema="monitored_barrier_", op="monitored_barrier", agree="", key=_nothing),
    Operator(schema="send", op="send", peer=2, tag=3, p2p=True, key=_peer_and_tag),
    Operator(schema="recv_", op="recv", peer=2, tag=3, p2p=True, key=_peer_and_tag),
    Operator(schema="recv_any_source_", op="recv_any_source", tag=2, p2p=True, key=_peer_and_tag),
)


def describe(
    operator: Operator, args: Arguments, ranks: Sequence[int], *, number: int, group: str, path: int
) -> events.Signature:
    """Return the signature of a call; ranks are global ones."""
    inputs = [] if operator.key is _nothing else _flat(args[operator.tensor])
    outputs = _flat(args[operator.output]) if operator.output is not None else []
    first = (inputs or outputs or [None])[0]
    described = events.Signature(
        signature=number,
        group=group,
        op=operator.op,
        p2p=operator.p2p,
        dtype=str(first.dtype).removeprefix("torch.") if first is not None else None,
        shapes=[list(tensor.shape) for tensor in inputs],
        output_shapes=[list(tensor.shape) for tensor in outputs],
        size_bytes=sum(tensor.numel() * tensor.element_size() for tensor in inputs),
        reduce_op=kind_of_reduction(args[operator.reduce_op]) if operator.reduce_op is not None else None,
        root=_global(ranks, args[operator.root]) if operator.root is not None else None,
        peer=_global(ranks, args[operator.peer]) if operator.peer is not None else None,
        tag=int(args[operator.tag]) if operator.tag is not None and len(args) > operator.tag else None,
        input_splits=list(args[operator.input_splits]) if operator.input_splits is not None else [],
        output_splits=list(args[operator.output_splits]) if operator.output_splits is not None else [],
        path=path,
        device=first.device.type if first is not None else "cpu",
        agree=0,
    )
    described.agree = digest(operator.agree, described)
    return described


def digest(agree: str, signature: events.Signature) -> int:
    """Return the 32-bit digest of what has to be equal on every member of the group."""
    parts: list[object] = [signature.op]
    if signature.op not in ("barrier", "monitored_barrier"):
        parts.append(signature.dtype)
    if "numel" in agree:
        parts.append(sum(math.prod(shape) for shape in signature.shapes))
    if "root" in agree:
        parts.append(signature.root)
    if "outputs" in agree:
        parts.append([math.prod(shape) for shape in signature.output_shapes])
    return zlib.crc32(repr(parts).encode())


def _flat(tensors: Any) -> list[Any]:
    if not isinstance(tensors, list | tuple):
        return [tensors]
    return [tensor for each in tensors for tensor in _flat(each)]


def _first_of(*lists: Any) -> Any:
    for each in lists:
        flat = _flat(each)
        if flat:
            return flat[0]
    raise ValueError("a collective without tensors")


def _global(ranks: Sequence[int], group_rank: int) -> int:
    return ranks[group_rank] if 0 <= group_rank < len(ranks) else group_rank


def kind_of_reduction(boxed: Any) -> str | None:
    """Return ``SUM`` and so on of the script object that the dispatcher passes."""
    try:
        return str(RedOpType(boxed.op()).name)
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None
