"""Damaged flight-recorder dumps: flipped bytes, values of the wrong kind, and pickles that try to run something."""

import functools
import json
import pickle
import random
from collections.abc import Callable
from typing import Any

from tests.generated import Format, dump
from tests.generator import Fault, Job, Shape, simulate

RANKS = 4
ODD: tuple[Any, ...] = (
    None,
    -1,
    0,
    2**31,
    2**63 - 1,
    -(2**63),
    2**70,
    1.5,
    float("nan"),
    float("inf"),
    True,
    "",
    "0",
    "-7",
    "x" * 5000,
    "\ud800",
    [],
    [[]],
    [[-1]],
    [[2**62, 2**62]],
    [None],
    {},
    {"0": None},
    ("0", "default_pg"),
    ("only one",),
    b"bytes",
    [[[[[[1]]]]]],
)
"""Values that a field should not have."""
ODD_GROUPS = (
    {"ranks": "[0, 9999999]"},
    {"ranks": [3, 2, 1]},
    {"ranks": "[]", "desc": 3},
    {"ranks": "[0,0,0]"},
    {"ranks": "[0, 1", "desc": "\ud800"},
)
NAMES = (
    "nccl:send 0->9",
    "nccl:recv ?<-?",
    "nccl:send -1->0",
    "nccl:coalesced",
    "nccl:ALLGATHER_coalesced",
    "::::",
    "gloo:all_reduce",
    "",
    "nccl:send 99999999999->0",
)

Mutation = Callable[[random.Random, dict[str, Any]], None]


@functools.cache
def _healthy(kind: str) -> tuple[dict[str, Any], ...]:
    fault = None if kind == "none" else Fault(kind=kind, rank=1, step=1, group="data")
    run = simulate(Job(shape=Shape(pipeline=2, data=2, expert=2), steps=2, layers=1, fault=fault))
    return tuple(dump(run, rank, Format()) for rank in range(RANKS))


def damaged(seed: int, marker: str = "/nonexistent/marker") -> dict[str, bytes]:
    """Return files by name that were damaged in a few ways; the same seed gives the same bytes.

    ``marker`` is a file that some of them would make if anything in them were run.
    """
    chance = random.Random(seed)
    contents = [pickle.loads(pickle.dumps(each)) for each in _healthy(chance.choice(("none", "host", "device", "op")))]
    for content in contents:
        for mutation in chance.choices(MUTATIONS, k=chance.randrange(3)):
            mutation(chance, content)
    files: dict[str, bytes] = {}
    for rank, content in enumerate(contents):
        data, suffix = _written(chance, content)
        for change in chance.choices(BYTES, k=chance.choice((0, 0, 0, 1, 2))):
            data = change(chance, data)
        if chance.random() < 0.1:
            data = _with_program(chance, data, marker)
        usual = f"nccl_trace_rank_{rank}"
        name = chance.choice((usual, usual, f"dump-{rank}", "dump", f"r{rank}.pkl"))
        files[name + suffix] = data
    return files


def _written(chance: random.Random, content: Any) -> tuple[bytes, str]:
    if chance.random() < 0.3:
        try:
            return json.dumps(content).encode(errors="replace"), ".json"
        except (TypeError, ValueError):
            pass
    return pickle.dumps(content, protocol=chance.choice((0, 1, 2, 2, 2, 3, 4, 5))), ""


# ---- values ---------------------------------------------------------------------------------------------------------
def _field(chance: random.Random, content: dict[str, Any]) -> None:
    for entry in _some(chance, content):
        entry[chance.choice(list(entry) or ["x"])] = chance.choice(ODD)


def _lost_field(chance: random.Random, content: dict[str, Any]) -> None:
    for entry in _some(chance, content):
        if entry:
            del entry[chance.choice(list(entry))]


def _name(chance: random.Random, content: dict[str, Any]) -> None:
    for entry in _some(chance, content):
        entry["profiling_name"] = chance.choice(NAMES)


def _number(chance: random.Random, content: dict[str, Any]) -> None:
    for entry in _some(chance, content):
        field = chance.choice(("collective_seq_id", "p2p_seq_id", "record_id", "pg_id", "time_created_ns"))
        entry[field] = chance.choice((0, 1, 2, 2**28, 2**40, 2**62, str(chance.randrange(100))))


def _order(chance: random.Random, content: dict[str, Any]) -> None:
    chance.shuffle(content["entries"])


def _doubled(chance: random.Random, content: dict[str, Any]) -> None:
    content["entries"] = content["entries"] * chance.choice((0, 2, 3))


def _odd_entry(chance: random.Random, content: dict[str, Any]) -> None:
    content["entries"].insert(chance.randrange(len(content["entries"]) + 1), chance.choice(ODD))


def _top(chance: random.Random, content: dict[str, Any]) -> None:
    content[chance.choice(("version", "pg_config", "pg_status", "comm_lib_version"))] = chance.choice(ODD)


def _groups(chance: random.Random, content: dict[str, Any]) -> None:
    if isinstance(content["pg_config"], dict):
        for name in chance.sample(list(content["pg_config"]), k=min(2, len(content["pg_config"]))):
            content["pg_config"][name] = chance.choice((*ODD, *ODD_GROUPS))


def _progress(chance: random.Random, content: dict[str, Any]) -> None:
    if isinstance(content["pg_status"], dict):
        content["pg_status"][chance.choice(("0", "1", "77", "x", -3))] = chance.choice(
            (*ODD, {"last_enqueued_collective": "-1"}, {"last_completed_collective": 3452013982})
        )


def _states(chance: random.Random, content: dict[str, Any]) -> None:
    for entry in _some(chance, content):
        entry["state"] = chance.choice(("scheduled", "started", "completed", "unheard of"))
        entry["retired"] = chance.choice((True, False))


def _some(chance: random.Random, content: dict[str, Any]) -> list[dict[str, Any]]:
    entries = [entry for entry in content["entries"] if isinstance(entry, dict)]
    return chance.sample(entries, k=min(len(entries), chance.choice((1, 1, 3, 40))))


MUTATIONS: tuple[Mutation, ...] = (
    _field,
    _lost_field,
    _name,
    _number,
    _order,
    _doubled,
    _odd_entry,
    _top,
    _groups,
    _progress,
    _states,
)


# ---- bytes ----------------------------------------------------------------------------------------------------------
def _cut(chance: random.Random, data: bytes) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _flip(chance: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 5, 50))):
        if changed:
            changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


def _lost(chance: random.Random, data: bytes) -> bytes:
    start = chance.randrange(len(data) + 1)
    return data[:start] + data[start + chance.randrange(200) :]


def _added(chance: random.Random, data: bytes) -> bytes:
    start = chance.randrange(len(data) + 1)
    return data[:start] + chance.randbytes(chance.randrange(20)) + data[start:]


def _repeated(chance: random.Random, data: bytes) -> bytes:
    start = chance.randrange(len(data) + 1)
    return data[:start] + data[start : start + chance.randrange(500)] * chance.randrange(1, 20) + data[start:]


BYTES = (_cut, _flip, _lost, _added, _repeated)


def _with_program(chance: random.Random, data: bytes, marker: str) -> bytes:
    command = f"touch {marker}".encode()
    program = b"cos\nsystem\n(X" + len(command).to_bytes(4, "little") + command + b"tR"
    start = chance.choice((2, chance.randrange(2, max(3, len(data)))))
    return data[:start] + program + (b"0" if chance.random() < 0.5 else b".") + data[start:]
