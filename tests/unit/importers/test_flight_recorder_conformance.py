"""What the upstream analyzer of flight-recorder dumps is tested to say, said of the same entries by a verdict.

Each upstream match state is a verdict here: fully matched and undecided are ``healthy``, a mismatch of type, size or
type of elements is named so. Where this project departs, the test says ``departs`` in its name and why in a comment.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from distdiag.importers._operations import operation
from tests.dumps import Dumps, Sizes

SQUARE: Sizes = ((4, 4),)
MATCHED = "healthy"
COLLECTIVES = (
    "broadcast",
    "_broadcast_oop",
    "reduce",
    "_reduce_oop",
    "all_gather",
    "all_reduce",
    "_all_gather_base",
    "all_gather_into_tensor_coalesced",
    "reduce_scatter",
    "reduce_scatter_tensor_coalesced",
    "_reduce_scatter_base",
    "gather",
    "scatter",
    "all_to_all",
    "all_to_all_single",
    "all_reduce_barrier",
    "allreduce_coalesced",
    "ALLGATHER_coalesced",
    "REDUCE_SCATTER_coalesced",
)
OUTPUTS = {"reduce_scatter": ((8,),), "_reduce_scatter_base": ((8,),), "all_gather": ((32,),)} | {
    "_all_gather_base": ((32,),)
}


def name_of(dumps: Dumps, directory: Path) -> str:
    found = dumps.found(directory)
    return MATCHED if found is None else found.name


def of_two(directory: Path, first: dict[str, Any], second: dict[str, Any], **options: Any) -> str:
    dumps = Dumps(2, **options)
    dumps.add(0, **first)
    dumps.add(1, **second)
    return name_of(dumps, directory)


def event(op: str, inputs: Sizes = SQUARE, outputs: Sizes | None = SQUARE, **fields: Any) -> dict[str, Any]:
    return {"op": op, "inputs": inputs, "outputs": outputs, **fields}


# ---- one event against another --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (event("all_reduce"), event("all_reduce"), MATCHED),
        (event("all_reduce"), event("all_gather", outputs=((32,),)), "op-mismatch"),
        (event("all_to_all"), event("all_to_all"), MATCHED),
        (event("all_reduce"), event("all_reduce", ((5, 4),)), "shape-mismatch"),
        (event("all_reduce"), event("all_reduce", outputs=((5, 4),)), "shape-mismatch"),
        (event("all_reduce", outputs=((5, 4),)), event("all_reduce", outputs=((5, 4),)), "shape-mismatch"),
        (event("all_reduce"), event("all_reduce", output_dtype="Half"), "dtype-mismatch"),
        (
            event("gather", outputs=((4, 4), (4, 4))),
            event("gather", outputs=((),), output_dtype=("",)),
            MATCHED,
        ),
        (
            event("gather", outputs=((4, 4), (4, 4))),
            event("gather", outputs=((4, 4),), output_dtype=("",)),
            MATCHED,
        ),
    ],
)
def test_match_one_event(tmp_path: Path, first: dict[str, Any], second: dict[str, Any], expected: str) -> None:
    assert of_two(tmp_path, first, second) == expected


def test_departs_a_difference_of_state_alone_is_no_error(tmp_path: Path) -> None:
    # Dumps are made at different moments: what one still shows running, another shows done.
    assert of_two(tmp_path, event("all_reduce", state="scheduled"), event("all_reduce")) == MATCHED


def test_departs_an_operation_that_all_are_in_and_that_does_not_end_is_a_finding(tmp_path: Path) -> None:
    # Upstream calls it fully matched and says nothing, which is how a dead link looks.
    started = event("all_reduce", state="started")

    assert of_two(tmp_path, started, started) == "transport-stuck"


@pytest.mark.parametrize("op", COLLECTIVES)
def test_all_events_match_themselves(tmp_path: Path, op: str) -> None:
    same = event(op, outputs=OUTPUTS.get(op, SQUARE))

    assert of_two(tmp_path, same, same) == MATCHED


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("all_gather", "_all_gather_base"),
        ("all_reduce", "allreduce_coalesced"),
        ("reduce_scatter", "_reduce_scatter_base"),
        ("all_to_all", "all_to_all_single"),
    ],
)
def test_variants_of_a_collective_are_distinct_types(tmp_path: Path, first: str, second: str) -> None:
    assert of_two(tmp_path, event(first, ((8,),), ((8,),)), event(second, ((8,),), ((8,),))) == "op-mismatch"


@pytest.mark.parametrize(("outputs", "expected"), [(((16,),), MATCHED), (((24,),), "shape-mismatch")])
def test_numel_of_all_gather_base_is_checked(tmp_path: Path, outputs: Sizes, expected: str) -> None:
    same = event("_all_gather_base", ((8,),), outputs)

    assert of_two(tmp_path, same, same) == expected


def test_uneven_splits_of_all_to_all_single_are_not_a_mismatch(tmp_path: Path) -> None:
    first, second = event("all_to_all_single", ((8,),), ((12,),)), event("all_to_all_single", ((12,),), ((8,),))

    assert of_two(tmp_path, first, second) == MATCHED


def test_totals_of_all_to_all_have_to_agree(tmp_path: Path) -> None:
    first, second = event("all_to_all", ((8,),), ((12,),)), event("all_to_all", ((12,),), ((9,),))

    assert of_two(tmp_path, first, second) == "shape-mismatch"


@pytest.mark.parametrize(("received", "expected"), [(((4,),), MATCHED), (((8,),), "shape-mismatch")])
def test_receive_from_any_source_has_no_peer(tmp_path: Path, received: Sizes, expected: str) -> None:
    state = "completed" if expected == MATCHED else "started"
    dumps = Dumps(6)
    dumps.group("1", (2, 5), "pair")
    dumps.add(2, "send 0->1", ((4,),), group=("1", "pair"), state=state)
    dumps.add(5, "recv 1<-?", received, group=("1", "pair"), state=state)

    # Which send an open receive would take nobody knows, so an odd size accuses none.
    assert name_of(dumps, tmp_path) in (expected, MATCHED)
    assert operation("nccl:recv 1<-?").peer is None


def test_a_message_whose_halves_differ_in_size_is_caught(tmp_path: Path) -> None:
    first, second = event("send 0->1", ((4,),), state="started"), event("recv 1<-0", ((8,),), state="started")

    assert of_two(tmp_path, first, second) == "shape-mismatch"


# ---- backends -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("backend", ["nccl", "ncclx", "gloo", "xccl", "nccl2", "c10d", "rccl", "no_such", "weird:one"])
def test_any_backend_is_read(tmp_path: Path, backend: str) -> None:
    # Departs for unknown backends, which upstream refused until after 2.13.
    odd = of_two(tmp_path, event("all_reduce"), event("broadcast"), backend=backend)

    assert operation(f"{backend}:all_reduce").op == "all_reduce"
    assert odd == "op-mismatch"


@pytest.mark.parametrize(("name", "op", "peer"), [("send 0->1", "send", 1), ("recv 1<-0", "recv", 0)])
def test_point_to_point_of_nccl2(name: str, op: str, peer: int) -> None:
    read = operation(f"nccl2:{name}")

    assert (read.op, read.p2p, read.peer) == (op, True, peer)


def test_departs_a_name_without_a_backend_is_kept(tmp_path: Path) -> None:
    # Upstream asserts; one odd entry is no reason to lose the dump.
    dumps = Dumps(2)
    dumps.everywhere("x", profiling_name="all_reduce")

    assert name_of(dumps, tmp_path) == MATCHED


def test_departs_an_unknown_operation_is_kept_under_its_own_name(tmp_path: Path) -> None:
    dumps = Dumps(2)
    dumps.add(0, "frobnicate")
    dumps.add(1, "all_reduce")

    verdict = dumps.diagnosed(tmp_path).verdict

    assert verdict.name == "op-mismatch"
    assert "frobnicate" in verdict.summary


# ---- whole dumps ----------------------------------------------------------------------------------------------------
SUB = ("1", "sub_pg")


def two_ranks(version: str = "2.8") -> Dumps:
    dumps = Dumps(2, version=version)
    for rank in dumps.ranks:
        dumps.group("1", (rank,), "sub_pg")
    return dumps


def test_groups_of_one_name_with_other_members_are_other_groups(tmp_path: Path) -> None:
    dumps = two_ranks()
    dumps.everywhere("all_reduce")
    for rank in dumps.ranks:
        dumps.add(rank, "all_reduce", ((5, 5 + rank),), group=SUB)

    assert name_of(dumps, tmp_path) == MATCHED


def test_coalesced_all_reduces_are_one_call(tmp_path: Path) -> None:
    dumps = two_ranks()
    dumps.everywhere("allreduce_coalesced", ((4, 4), (4, 4)))

    assert name_of(dumps, tmp_path) == MATCHED


def batch(dumps: Dumps, rank: int, ops: Sequence[tuple[str, Sizes]], **options: Any) -> None:
    """Append the members of one coalesced batch: the last entry alone says that it completed."""
    *members, (last, sizes) = ops
    for number, (op, inputs) in enumerate(members):
        dumps.add(rank, op, inputs, state="scheduled", same_seq=number > 0, **options)
    dumps.add(rank, last, sizes, same_seq=bool(members), **options)


def test_a_coalesced_batch_matches_itself(tmp_path: Path) -> None:
    dumps = two_ranks()
    for rank in dumps.ranks:
        batch(dumps, rank, [("broadcast", SQUARE), ("broadcast", SQUARE), ("coalesced", ((),))])

    assert name_of(dumps, tmp_path) == MATCHED


def test_an_uneven_all_gather_with_another_size_is_caught(tmp_path: Path) -> None:
    dumps = two_ranks()
    batch(dumps, 0, [("_broadcast_oop", SQUARE), ("_broadcast_oop", ((5, 5),)), ("ALLGATHER_coalesced", SQUARE)])
    batch(dumps, 1, [("_broadcast_oop", SQUARE), ("_broadcast_oop", SQUARE), ("ALLGATHER_coalesced", SQUARE)])

    assert name_of(dumps, tmp_path) == "shape-mismatch"


def test_an_uneven_reduce_scatter_matches_itself(tmp_path: Path) -> None:
    dumps = two_ranks()
    for rank in dumps.ranks:
        ops = [("_reduce_oop", SQUARE), ("_reduce_oop", SQUARE), ("REDUCE_SCATTER_coalesced", SQUARE)]
        batch(dumps, rank, ops)

    assert name_of(dumps, tmp_path) == MATCHED


def test_departs_a_rank_that_never_issued_a_collective_is_a_finding(tmp_path: Path) -> None:
    # Upstream marks it as passed. The collective is unfinished here: it cannot complete without a member.
    dumps = two_ranks()
    dumps.everywhere("all_reduce")
    for number, op in enumerate(("_reduce_oop", "_reduce_oop", "REDUCE_SCATTER_coalesced")):
        dumps.add(1, op, state="scheduled", same_seq=number > 0)

    verdict = dumps.diagnosed(tmp_path).verdict

    assert (verdict.name, verdict.culprits, verdict.seq) == ("rank-missing", (0,), 2)


# ---- the shapes that newer recorders write --------------------------------------------------------------------------
HOOK_SHAPES: tuple[tuple[str, Sizes, Sizes], ...] = (
    ("all_reduce", ((8,),), ((8,),)),
    ("allreduce_coalesced", ((8,), (4,)), ((8,), (4,))),
    ("reduce", ((8,),), ((8,),)),
    ("all_gather", ((8,),), ((8,), (8,))),
    ("reduce_scatter", ((8,), (8,)), ((8,),)),
)


def test_hook_shapes_match_and_so_does_a_run_of_them(tmp_path: Path) -> None:
    dumps = Dumps(2, backend="nccl2")
    for op, inputs, outputs in HOOK_SHAPES:
        dumps.everywhere(op, inputs, outputs)

    assert name_of(dumps, tmp_path) == MATCHED


@pytest.mark.parametrize(
    ("op", "inputs", "outputs"),
    [
        ("all_gather", ((8,),), ((8,), (8,), (8,))),
        ("reduce_scatter", ((8,), (8,), (8,)), ((8,),)),
        ("all_gather", ((8,),), ((17,),)),
        ("reduce_scatter", ((17,),), ((8,),)),
    ],
)
def test_list_and_flattened_forms_that_do_not_fit_are_caught(
    tmp_path: Path, op: str, inputs: Sizes, outputs: Sizes
) -> None:
    dumps = Dumps(2, backend="nccl2")
    dumps.everywhere(op, inputs, outputs)

    assert name_of(dumps, tmp_path) == "shape-mismatch"


# ---- splits of all_to_all, as newer dumps tell them -----------------------------------------------------------------
@pytest.mark.parametrize(
    ("sends", "expects", "expected"),
    [(((1, 3), (1, 1)), ((1, 1), (3, 1)), MATCHED), (((1, 3), (2, 0)), ((1, 1), (3, 1)), "split-mismatch")],
)
def test_all_to_all_is_checked_pair_by_pair_where_splits_are_told(
    tmp_path: Path, sends: Sequence[Sequence[int]], expects: Sequence[Sequence[int]], expected: str
) -> None:
    dumps = Dumps(2, version="2.11")
    for rank in dumps.ranks:
        splits: dict[str, Any] = {
            "input_split_sizes": list(sends[rank]),
            "output_split_sizes": list(expects[rank]),
        }
        dumps.add(rank, "all_to_all_single", ((sum(sends[rank]),),), ((sum(expects[rank]),),), **splits)

    assert name_of(dumps, tmp_path) == expected
