"""What the frames of a stack say: the user's part of them, the operation a thread is in, what it is busy with."""

import re
import sys
from collections.abc import Sequence

from distdiag.run.crashes import user_frames

BACKWARD = "backward"
"""Operation of a rank that waits somewhere in a backward pass: which collective it is, its frames do not say."""
UNKNOWN = "unknown"
CREATIONS = {
    "init_process_group": "init_process_group",
    "new_group": "new_group",
    "_new_group_with_tag": "new_group",
    "split_group": "split_group",
}
ACTIVITIES = (
    ("data-loading", ("torch/utils/data/",)),
    ("checkpoint", ("torch/distributed/checkpoint/", "torch/serialization.py")),
    ("compile", ("torch/_dynamo/", "torch/_inductor/", "torch/_functorch/")),
)
"""Parts of libraries that tell what a thread does."""

_OPS = frozenset(
    {
        "all_reduce",
        "all_reduce_coalesced",
        "all_gather",
        "all_gather_into_tensor",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "all_to_all",
        "all_to_all_single",
        "broadcast",
        "reduce",
        "gather",
        "scatter",
        "barrier",
        "monitored_barrier",
        "send",
        "recv",
        "isend",
        "irecv",
        "batch_isend_irecv",
    }
)
_SAME_OP = {"isend": "send", "irecv": "recv", "batch_isend_irecv": "send", "_all_gather_base": "all_gather_into_tensor"}
_COLLECTIVES = ("torch/distributed/distributed_c10d.py", "torch/distributed/_functional_collectives.py")
_AUTOGRAD = "torch/autograd/"
_FRAME = re.compile(r"(?P<file>.*):(?P<line>\d+) (?P<function>.*)", re.DOTALL)
_SOURCES = (".py", ".pyx", ".ipynb")
_RELATIVE_LIBRARIES = ("torch/", "<", "distdiag/")


def split(frame: str) -> tuple[str, int, str]:
    """Return file, line and function of a frame."""
    found = _FRAME.fullmatch(frame)
    return (found["file"], int(found["line"]), found["function"]) if found else (frame, 0, "")


def user_part(frames: Sequence[str]) -> tuple[str, ...]:
    """Return the frames of the user's Python: none of torch, the standard library or C, however files are shortened."""
    return tuple(frame for frame in user_frames(frames) if not _is_library(split(frame)[0]))


def _is_library(file: str) -> bool:
    if not file.endswith(_SOURCES):
        return "ipykernel" not in file  # cells of a notebook have no file
    if file.startswith(_RELATIVE_LIBRARIES):
        return True
    module = file.partition("/")[0].removesuffix(".py")
    return not file.startswith("/") and module in sys.stdlib_module_names


def operation_in(frames: Sequence[str]) -> str | None:
    """Return the collective that a stack, outermost first, is in; None for a stack that is in none."""
    for frame in reversed(frames):
        file, _, function = split(frame)
        name = function.rpartition(".")[2]
        if file.endswith(_COLLECTIVES) and (name in _OPS or name in _SAME_OP):
            return _SAME_OP.get(name, name)
    in_autograd = any(_AUTOGRAD in split(frame)[0] for frame in frames)
    return BACKWARD if in_autograd else None


def creation_in(frames: Sequence[str]) -> str | None:
    """Return ``init_process_group`` or ``new_group`` if a stack is in the making of a group."""
    for frame in frames:
        file, _, function = split(frame)
        if file.endswith(_COLLECTIVES[0]) and function in CREATIONS:
            return CREATIONS[function]
    return None


def activity_in(frames: Sequence[str]) -> str | None:
    """Return what a stack is busy with, by the innermost library frame that tells."""
    for frame in reversed(frames):
        file, _, function = split(frame)
        for activity, marks in ACTIVITIES:
            # A module body means that the library is being imported, not used.
            if function != "<module>" and any(mark in file for mark in marks):
                return activity
    return None
