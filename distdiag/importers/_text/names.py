"""Names that libraries give to operations, groups and types, in the words of our own logs."""

import re

from distdiag.importers._text.facts import GroupTag

DEFAULT_GROUP = "0"
"""Name that c10d gives the default group."""
DEFAULT_DESCRIPTION = "default_pg"

_OPS = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "_allgather_base": "all_gather_into_tensor",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather_into_tensor_coalesced",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reducescatter": "reduce_scatter",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "broadcast": "broadcast",
    "broadcast_oop": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv",
    "sendrecv": "send",
    "recvanysource": "recv_any_source",
}
_DTYPES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "char": "int8",
    "byte": "uint8",
    "bool": "bool",
    "bfloat16": "bfloat16",
}
_TAG = re.compile(
    r"\[PG (?:ID )?(?P<number>\w+)(?: PG GUID (?P<name>[^\s(\]]+))?(?: ?\((?P<description>[^)]*)\))?"
    r" Rank (?P<rank>\d+)\]"
)
_OLD_RANK = re.compile(r"\[Rank (\d+)\]")


def operation(name: str) -> str:
    """Return our name of an operation that a backend names ``ALLREDUCE`` or ``_ALLGATHER_BASE``."""
    lowered = name.strip().lower()
    return _OPS.get(lowered, _OPS.get(lowered.lstrip("_"), lowered))


def is_point_to_point(op: str) -> bool:
    """Return whether an operation has one partner only."""
    return op in ("send", "recv", "recv_any_source")


def dtype(name: str) -> str:
    """Return torch's public name of a scalar type that c10 names ``Float`` or ``BFloat16``."""
    lowered = name.strip().lower()
    return _DTYPES.get(lowered, lowered)


def group_tag(text: str) -> GroupTag | None:
    """Return the group that a line names."""
    found = _TAG.search(text)
    if not found:
        return None
    name = found["name"] or found["number"]
    description = "" if found["description"] in (None, "undefined") else found["description"]
    if description == DEFAULT_DESCRIPTION:
        name = DEFAULT_GROUP
    return GroupTag(name, description, int(found["rank"]))


def group_rank(text: str) -> int | None:
    """Return the rank inside a group that old versions print in front of a message."""
    found = _OLD_RANK.search(text)
    return int(found[1]) if found else None
