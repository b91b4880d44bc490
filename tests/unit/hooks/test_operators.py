"""What the record of a call says of it: operator, tensors, root, splits, numbers and the chain hash."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
import torch.distributed._functional_collectives

import distdiag
from distdiag import events
from tests.recordings import WORLD_SIZE, Recording, floats, lonely_world, pretended_world, recording

dist: Any = torch.distributed
functional: Any = torch.distributed._functional_collectives

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")


def each_rank(*shape: int) -> list[torch.Tensor]:
    return [floats(*shape) for _ in range(WORLD_SIZE)]


def uneven() -> list[torch.Tensor]:
    return [floats(1 + rank) for rank in range(WORLD_SIZE)]


def waited(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [functional.wait_tensor(tensor) for tensor in tensors]


OPERATIONS: dict[str, tuple[Callable[[], Any], list[list[int]], list[list[int]]]] = {
    "all_reduce": (lambda: dist.all_reduce(floats(2, 3)), [[2, 3]], []),
    "broadcast": (lambda: dist.broadcast(floats(5), 0), [[5]], []),
    "reduce": (lambda: dist.reduce(floats(5), 2), [[5]], []),
    "all_gather": (lambda: dist.all_gather(each_rank(2), floats(2)), [[2]], [[2]] * 4),
    "all_gather_into_tensor": (lambda: dist.all_gather_into_tensor(floats(8), floats(2)), [[2]], [[8]]),
    "reduce_scatter": (lambda: dist.reduce_scatter(floats(2), each_rank(2)), [[2]] * 4, [[2]]),
    "reduce_scatter_tensor": (lambda: dist.reduce_scatter_tensor(floats(2), floats(8)), [[8]], [[2]]),
    "gather": (lambda: dist.gather(floats(3), None, 0), [[3]], []),
    "scatter": (lambda: dist.scatter(floats(3), None, 0), [[3]], []),
    "all_to_all": (lambda: dist.all_to_all(uneven(), uneven()), [[1], [2], [3], [4]], [[1], [2], [3], [4]]),
    "all_to_all_single": (lambda: dist.all_to_all_single(floats(4), floats(4)), [[4]], [[4]]),
    "barrier": (lambda: dist.barrier(), [], []),
    "send": (lambda: dist.send(floats(2), 3), [[2]], []),
    "recv": (lambda: dist.irecv(floats(2), 3), [[2]], []),
    "recv_any_source": (lambda: dist.irecv(floats(2)), [[2]], []),
    "all_reduce_coalesced": (lambda: dist.all_reduce_coalesced([floats(2), floats(3)]), [[2], [3]], []),
    "all_gather_coalesced": (
        lambda: dist.all_gather_coalesced([[floats(2)] for _ in range(WORLD_SIZE)], [floats(2)]),
        [[2]],
        [[2]] * 4,
    ),
    "all_gather_into_tensor_coalesced": (
        lambda: waited(functional.all_gather_into_tensor_coalesced([floats(2), floats(3)], dist.group.WORLD)),
        [[2], [3]],
        [[8], [12]],
    ),
    "reduce_scatter_tensor_coalesced": (
        lambda: waited(functional.reduce_scatter_tensor_coalesced([floats(8)], "sum", [0], dist.group.WORLD)),
        [[8]],
        [[2]],
    ),
}
"""By recorded name: the call of a user, the shapes of the inputs and those of the outputs where they differ."""


@pytest.mark.parametrize("op", OPERATIONS)
def test_call_is_recorded_with_its_name_shapes_dtype_and_bytes(op: str, recorded: Recording) -> None:
    operation, shapes, output_shapes = OPERATIONS[op]

    operation()

    issued = recorded.the_call()
    assert issued.op == op
    assert issued.signature.shapes == shapes
    assert issued.signature.output_shapes == output_shapes
    assert issued.signature.size_bytes == 4 * sum(torch.Size(shape).numel() for shape in shapes)
    assert issued.signature.dtype == ("float32" if shapes else None)
    assert issued.signature.p2p == (op in ("send", "recv", "recv_any_source"))


def test_every_operator_of_this_release_is_watched() -> None:
    from distdiag.hooks._operators import OPERATORS

    names = {name.partition("::")[2] for name in map(str, torch._C._dispatch_get_all_op_names()) if "c10d::" in name}

    assert {each.schema for each in OPERATORS} >= names - {"check_for_nan"} - {
        name for name in names if name.startswith("_c10d")
    }


def test_bytes_follow_the_dtype(recorded: Recording) -> None:
    dist.all_reduce(torch.ones(3, dtype=torch.bfloat16))

    assert recorded.the_call().signature.dtype == "bfloat16"
    assert recorded.the_call().signature.size_bytes == 6


ROOTED: dict[str, Callable[[Any], Any]] = {
    "broadcast": lambda group: dist.broadcast(floats(2), 3, group=group),
    "reduce": lambda group: dist.reduce(floats(2), 3, group=group),
    "gather": lambda group: dist.gather(floats(2), None, 3, group=group),
    "scatter": lambda group: dist.scatter(floats(2), None, 3, group=group),
}


@pytest.mark.parametrize("op", ROOTED)
def test_root_of_a_subgroup_is_a_global_rank(op: str, recorded: Recording) -> None:
    group = dist.new_group([1, 3])

    ROOTED[op](group)

    assert recorded.the_call(op).signature.root == 3


@pytest.mark.parametrize("op", ["send", "recv"])
def test_peer_in_a_subgroup_is_a_global_rank_and_the_tag_is_kept(op: str, recorded: Recording) -> None:
    group = dist.new_group([1, 3])

    {"send": dist.isend, "recv": dist.irecv}[op](floats(2), 3, group=group, tag=7)

    assert recorded.the_call().signature.peer == 3
    assert recorded.the_call().signature.tag == 7


def test_receive_from_any_source_has_no_peer(recorded: Recording) -> None:
    dist.irecv(floats(2), tag=5)

    assert recorded.the_call().signature.peer is None
    assert recorded.the_call().signature.tag == 5


def test_splits_of_all_to_all_are_recorded(recorded: Recording) -> None:
    dist.all_to_all_single(floats(10), floats(6), [1, 2, 3, 4], [3, 1, 1, 1])

    assert recorded.the_call().signature.output_splits == [1, 2, 3, 4]
    assert recorded.the_call().signature.input_splits == [3, 1, 1, 1]


def test_reduce_op_is_recorded(recorded: Recording) -> None:
    dist.all_reduce(floats(2))
    dist.reduce_scatter_tensor(floats(1), floats(4), op=dist.ReduceOp.AVG)
    dist.reduce(floats(2), 0, op=dist.ReduceOp.MAX)

    assert [each.signature.reduce_op for each in recorded.log.issued()] == ["SUM", "AVG", "MAX"]


def test_reduce_op_of_a_shared_line_is_that_of_each_caller(recorded: Recording) -> None:
    def reduce(op: Any) -> None:
        dist.all_reduce(floats(2), op=op)

    reduce(dist.ReduceOp.SUM)
    reduce(dist.ReduceOp.MAX)

    assert [each.signature.reduce_op for each in recorded.log.issued()] == ["SUM", "MAX"]


def test_reduce_op_that_changes_on_one_line_is_that_of_each_call(recorded: Recording) -> None:
    kinds = [dist.ReduceOp.SUM, dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.SUM, dist.ReduceOp.MIN] * 3
    for kind in kinds:
        dist.all_reduce(floats(2), op=kind)

    issued = recorded.log.issued()
    assert [each.signature.reduce_op for each in issued] == ["SUM", "SUM", "MAX", "SUM", "MIN"] * 3
    assert len({each.signature.signature for each in issued}) == 3


def test_reduce_op_that_changes_after_many_calls_of_the_first_step_is_that_of_each_call(recorded: Recording) -> None:
    kinds = ["SUM"] * 20 + ["MAX", "SUM"]
    for kind in kinds:
        dist.all_reduce(floats(2), op=getattr(dist.ReduceOp, kind))

    assert [each.signature.reduce_op for each in recorded.log.issued()] == kinds


def test_reduce_op_that_changes_steps_later_is_seen_within_some_hundred_calls(recorded: Recording) -> None:
    for step in range(6):
        for _ in range(100):
            dist.all_reduce(floats(2), op=dist.ReduceOp.SUM if step < 3 else dist.ReduceOp.MAX)
        distdiag.step()

    kinds = [each.signature.reduce_op for each in recorded.log.issued()]
    assert kinds[:300] == ["SUM"] * 300
    assert kinds[512:] == ["MAX"] * 88
    assert kinds[300] == "SUM", "steps after the first two do not pay for reading it"


def test_collectives_and_point_to_point_are_numbered_apart(recorded: Recording) -> None:
    dist.all_reduce(floats(2))
    dist.isend(floats(2), 0)
    dist.isend(floats(2), 0)
    dist.barrier()

    numbered = [(each.op, each.call.call, each.call.seq) for each in recorded.log.issued()]
    assert numbered == [("all_reduce", 1, 1), ("send", 2, 1), ("send", 3, 2), ("barrier", 4, 2)]


def test_groups_are_numbered_apart(recorded: Recording) -> None:
    group = dist.new_group([1, 3])

    dist.all_reduce(floats(2))
    dist.all_reduce(floats(2), group=group)

    world, subgroup = recorded.log.issued("all_reduce")
    assert world.call.seq == subgroup.call.seq == 1
    assert world.signature.group != subgroup.signature.group


# ---- the chain hash ----------------------------------------------------------------------------------------------
def chains_of(directory: Path, *operations: Callable[[], Any]) -> list[int]:
    with recording(directory) as made, pretended_world():
        for operation in operations:
            operation()
    return [each.call.chain for each in made.log.issued()]


def test_chain_is_equal_as_long_as_what_must_agree_is(tmp_path: Path) -> None:
    def two() -> None:
        dist.all_reduce(floats(2))

    def also_two() -> None:
        dist.all_reduce(floats(2, 1))

    def three() -> None:
        dist.all_reduce(floats(3))

    one = chains_of(tmp_path / "one", two, two, two, two)
    other = chains_of(tmp_path / "other", also_two, also_two, three, two)

    assert one[:2] == other[:2]
    assert one[2] != other[2]
    assert one[3] != other[3]


def test_chain_of_call_sites_is_apart_from_it(tmp_path: Path) -> None:
    with recording(tmp_path) as made, pretended_world():
        dist.barrier()
        for _ in range(2):
            dist.barrier()

    first, second, third = (each.call for each in made.log.issued())
    assert len({first.chain, second.chain, third.chain}) == 3
    assert len({first.path_chain, second.path_chain, third.path_chain}) == 3


def test_chain_does_not_see_roots_that_may_differ_nor_sizes_of_all_to_all(tmp_path: Path) -> None:
    one = chains_of(tmp_path / "one", lambda: dist.all_to_all_single(floats(4), floats(4), [1] * 4, [1] * 4))
    other = chains_of(tmp_path / "other", lambda: dist.all_to_all_single(floats(8), floats(4), [2] * 4, [1] * 4))

    assert one == other


# ---- numbers that c10d gives ---------------------------------------------------------------------------------
def sequence_in_c10d() -> int:
    return int(dist.distributed_c10d._get_default_group()._get_sequence_number_for_group())


def test_numbers_are_those_of_c10d(tmp_path: Path) -> None:
    with recording(tmp_path) as made, lonely_world():
        for _ in range(3):
            dist.all_reduce(floats(2))
            dist.broadcast(floats(2), 0)
            dist.all_gather([floats(2)], floats(2))
            dist.barrier()

        assert made.log.issued()[-1].call.seq == sequence_in_c10d() == 12


def test_numbers_go_on_from_those_of_c10d_when_recording_begins_late(tmp_path: Path) -> None:
    with lonely_world():
        for _ in range(5):
            dist.barrier()
        with recording(tmp_path) as made:
            dist.barrier()

            assert made.log.issued()[-1].call.seq == sequence_in_c10d() == 6
            assert made.log.of(events.Group)[0].sequence == 5
