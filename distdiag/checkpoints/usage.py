"""What a whole checkpoint can be used for: sizes it loads at, and whether optimizer and model belong together."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

from distdiag.checkpoints.layout import Layout, PathOf, Tensor

MOST_RANKS = 4096
"""Sizes up to this one are tried for an even split."""
MOST_NAMED = 8
NUMBERED = re.compile(r"^(.*?(?:rank|worker|dp|node)\D{0,2})(\d+)(\D.*)?$", re.IGNORECASE)
"""A name with the number of a rank in it: what it stands for belongs to that rank."""
STATE = "state"
GROUPS = "param_groups"


def loads(layout: Layout, world_size: int | None) -> str:
    """Say at which data-parallel sizes a sharded checkpoint can be loaded."""
    sharded = [tensor for tensor in layout.tensors.values() if tensor.size and all(tensor.size)]
    rows = math.gcd(*(tensor.size[0] for tensor in sharded if len(tensor.chunks) > 1)) if sharded else 0
    text = "at any data-parallel size, for each rank reads the rows that it needs"
    even = [size for size in range(1, min(rows, MOST_RANKS) + 1) if rows % size == 0]
    if len(even) > 1:
        text += f"; every tensor that was split divides evenly over {_few(even)}"
    bound = _bound_to_ranks((*layout.tensors, *layout.values))
    if bound:
        at = f" ({world_size} ranks saved it)" if world_size is not None else ""
        text += f"; {_few(bound)} exist once per rank and fit only the same size{at}"
    return text


def _bound_to_ranks(names: Iterable[str]) -> list[str]:
    """Return names that exist with several ranks' numbers, the number written as ``N``."""
    numbers: defaultdict[str, set[int]] = defaultdict(set)
    for name in names:
        match = NUMBERED.match(name)
        if match is not None:
            numbers[f"{match[1]}N{match[3] or ''}"].add(int(match[2]))
    return sorted(name for name, found in numbers.items() if len(found) > 1 and found == set(range(len(found))))


def mapping_notes(layout: Layout, values: Mapping[str, object]) -> list[str]:
    """Say where optimizer state and model do not belong together: state that is missing, or of no parameter."""
    states = _states(layout)
    if not states:
        return []
    notes = []
    slots = defaultdict(set)
    for (_, slot), tensor in states.items():
        slots[slot].add(tensor)
    with_state = {parameter for parameter, _ in states}
    grouped = _grouped(layout, values)
    without = sorted(grouped - with_state)
    if without:
        notes.append(f"{_have(without, len(grouped))} no optimizer state: frozen, or never trained?")
    most = {slot for slot, have in slots.items() if len(have) * 2 > len(with_state)}
    for slot in sorted(most):
        lacking = sorted(with_state - slots[slot])
        if lacking:
            notes.append(f"{_have(lacking, len(with_state))} optimizer state, but no {slot}")
    strangers = sorted(parameter for parameter in with_state if not _is_in_model(parameter, layout))
    if strangers and len(strangers) < len(with_state):
        first = f"{strangers[0]}, the first of {len(strangers)}," if len(strangers) > 1 else strangers[0]
        notes.append(f"optimizer state of {first} belongs to no tensor of the model")
    return notes


def _states(layout: Layout) -> dict[tuple[str, str], str]:
    """Return the optimizer's state by parameter and slot: ``("0.weight", "exp_avg")``."""
    states = {}
    for name in layout.tensors:
        path = _path(layout, name)
        if STATE in path[:-2]:
            at = path.index(STATE)
            parameter = ".".join(str(part) for part in path[at + 1 : -1])
            states[parameter, str(path[-1])] = parameter
    return states


def _path(layout: Layout, name: str) -> PathOf:
    return layout.paths.get(name) or tuple(name.split("."))


def _grouped(layout: Layout, values: Mapping[str, object]) -> set[str]:
    """Return the parameters that the optimizer's groups name."""
    named: set[str] = set()
    for name, value in values.items():
        path = _path(layout, name)
        if GROUPS in path and path[-1] == "params" and isinstance(value, list):
            named.update(str(each) for each in value if isinstance(each, str | int))
    return named


def _is_in_model(parameter: str, layout: Layout) -> bool:
    if parameter.isdecimal():
        return True  # the optimizer counts its parameters; which they are is not told
    return any(name.endswith(parameter) and STATE not in _path(layout, name) for name in layout.tensors)


def _have(names: list[str], of: int) -> str:
    if len(names) == 1:
        return f"parameter {names[0]}, one of {of}, has"
    return f"{len(names)} of {of} parameters, first {names[0]}, have"


def _few(what: list[int] | list[str]) -> str:
    shown = ", ".join(map(str, what[:MOST_NAMED]))
    return shown if len(what) <= MOST_NAMED else f"{shown}, … {what[-1]}"


def elements(tensors: Iterable[Tensor]) -> int:
    """Return how many numbers some tensors hold."""
    return sum(math.prod(tensor.size) for tensor in tensors)
