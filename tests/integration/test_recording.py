"""Two real ranks use the libraries of torch, and torch's own records say whether ours are complete.

Collectives are compared with the flight recorder, which sits in the backend and is not ours. It keeps no sends
and receives: those are compared with what a dispatch mode sees.
"""

import math
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from distdiag import events
from tests.ranks import Ended, launch
from tests.recordings import Issued

LIBRARIES = """
import contextlib, json, os, sys
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils._python_dispatch import TorchDispatchMode
import distdiag

distdiag.install()
dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
data = torch.ones(4, 8)


class Sends(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "c10d":
            self.seen.append(function._schema.name.removeprefix("c10d::").rstrip("_"))
        return function(*args, **(kwargs or {}))


def blocks():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))


def train(model, optimizer=None, steps=2):
    for _ in range(steps):
        loss = model(data).sum()
        loss.backward()  # LINE backward
        if optimizer is not None:
            optimizer.step()


def ddp():
    train(nn.parallel.DistributedDataParallel(blocks()))


def fsdp():
    train(FullyShardedDataParallel(blocks(), device_id=torch.device("cpu")))


def fsdp2():
    model = blocks()
    for unit in (*model, model):
        fully_shard(unit)
    train(model)


def tensor_parallel():
    mesh = init_device_mesh("cpu", (world_size,))
    train(parallelize_module(blocks(), mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()}))


def pipeline(schedule):
    stage = PipelineStage(nn.Linear(8, 8), rank, world_size, torch.device("cpu"))
    running = schedule(stage, 4, loss_fn=lambda output, target: (output - target).square().sum())
    for _ in range(2):
        running.step(data) if rank == 0 else running.step(target=data)


def pipeline_1f1b():
    pipeline(Schedule1F1B)


def pipeline_gpipe():
    pipeline(ScheduleGPipe)


def batched_sends():
    received = torch.empty(2)
    operations = [dist.P2POp(dist.isend, torch.ones(2), 1 - rank), dist.P2POp(dist.irecv, received, 1 - rank)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def all_to_all():
    sent = [1, 3] if rank == 0 else [2, 4]
    received = [1, 2] if rank == 0 else [3, 4]
    dist.all_to_all_single(torch.empty(sum(received)), torch.ones(sum(sent)), received, sent)
    dist.all_to_all([torch.empty(2) for _ in range(2)], [torch.ones(2) for _ in range(2)])


def objects():
    gathered = [None] * world_size
    dist.all_gather_object(gathered, {"rank": rank})
    dist.broadcast_object_list([rank], src=0)
    dist.scatter_object_list([None], [1, 2] if rank == 0 else None, src=0)


def rooted():
    dist.broadcast(torch.ones(3), 1)
    dist.reduce(torch.ones(3), 1)
    dist.gather(torch.ones(3), [torch.empty(3) for _ in range(2)] if rank == 1 else None, 1)


def functional_collectives():
    functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD) + 1
    functional.all_gather_tensor(torch.ones(4), 0, dist.group.WORLD) + 1
    functional.reduce_scatter_tensor(torch.ones(4), "sum", 0, dist.group.WORLD) + 1


def reduce_and_add(tensor):
    return functional.all_reduce(tensor * 2, "sum", dist.group.WORLD) + 1  # LINE compiled


def compiled_graph():
    compiled = torch.compile(reduce_and_add, backend="aot_eager", fullgraph=True)
    assert [compiled(torch.ones(4)).sum().item() for _ in range(2)] == [20, 20]


def compiled_code():
    compiled = torch.compile(reduce_and_add, fullgraph=True)
    assert [compiled(torch.ones(4)).sum().item() for _ in range(2)] == [20, 20]


def zero_optimizer():
    model = nn.parallel.DistributedDataParallel(blocks())
    train(model, ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.SGD, lr=0.1))


def checkpoint():
    torch.distributed.checkpoint.save({"weights": torch.ones(3)}, checkpoint_id=os.environ["CHECKPOINT"])


def barriers():
    dist.barrier()
    dist.barrier(async_op=True).wait()


def inference():
    with torch.inference_mode():
        dist.all_reduce(torch.ones(4))


def subgroup():
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(5), group=group)
    dist.all_reduce(torch.ones(6))
    dist.destroy_process_group(group)


def counted():
    trace = json.loads(torch._C._distributed_c10d._dump_fr_trace_json())
    return [
        (entry["profiling_name"].removeprefix("gloo:"), entry["process_group"][0], entry["input_sizes"])
        for entry in trace.get("entries", [])
    ]


told = {}
SECTIONS = (
    ddp, fsdp, fsdp2, tensor_parallel, pipeline_1f1b, pipeline_gpipe, batched_sends, all_to_all, objects, rooted,
    functional_collectives, compiled_graph, zero_optimizer, checkpoint, barriers, inference, subgroup,
)
for section in (globals()[name] for name in os.environ["ONLY"].split()) if "ONLY" in os.environ else SECTIONS:
    before = len(counted())
    sends = Sends()
    watch = sends if section in (pipeline_1f1b, pipeline_gpipe, batched_sends) else contextlib.nullcontext()
    with distdiag.phase(section.__name__), watch:
        section()
    told[section.__name__] = {"collectives": counted()[before:], "sends": sends.seen}
dist.barrier()
dist.destroy_process_group()
print(json.dumps(told))
"""

ON_GLOO = {
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "all_to_all_single": "all_to_all",
    "reduce_scatter_tensor": "all_reduce",
    "reduce_scatter_tensor_coalesced": "all_reduce",
}
"""What gloo makes of operators that it lacks."""
EMPTY_ON_SOME_RANKS = frozenset({"scatter"})
SECTIONS = [
    "ddp",
    "fsdp",
    "fsdp2",
    "tensor_parallel",
    "all_to_all",
    "objects",
    "rooted",
    "functional_collectives",
    "compiled_graph",
    "zero_optimizer",
    "checkpoint",
    "barriers",
    "inference",
    "subgroup",
]
SENDING_SECTIONS = ("pipeline_1f1b", "pipeline_gpipe", "batched_sends")


def run(directory: Path, **variables: str) -> list[Ended]:
    ranks = launch(
        LIBRARIES,
        directory,
        cap_seconds=150,
        variables={"TORCH_FR_BUFFER_SIZE": "5000", "CHECKPOINT": str(directory / "checkpoint"), **variables},
    )
    assert [each.code for each in ranks] == [0, 0], ranks[0].stderr + ranks[1].stderr
    return ranks


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> list[Ended]:
    """Run all sections of the program once, on two ranks."""
    return run(tmp_path_factory.mktemp("libraries"))


def of_section(rank: Ended, section: str) -> list[Issued]:
    return [each for each in rank.log.issued() if each.call.phase == section]


def recorded_collectives(rank: Ended, section: str) -> list[tuple[str, str, int]]:
    return [
        (
            ON_GLOO.get(each.op, each.op),
            each.signature.group,
            -1 if each.op in EMPTY_ON_SOME_RANKS else sum(map(math.prod, each.signature.shapes)),
        )
        for each in of_section(rank, section)
        if not each.signature.p2p
    ]


def counted_collectives(rank: Ended, section: str) -> list[tuple[str, str, int]]:
    return [
        (op, group, -1 if op in EMPTY_ON_SOME_RANKS else sum(map(math.prod, sizes)))
        for op, group, sizes in rank.told[section]["collectives"]
    ]


@pytest.mark.parametrize("section", SECTIONS)
def test_collectives_are_those_that_the_flight_recorder_counted_in_their_order(
    section: str, libraries: list[Ended]
) -> None:
    for rank in libraries:
        counted = counted_collectives(rank, section)

        assert recorded_collectives(rank, section) == counted
        assert counted


@pytest.mark.parametrize("section", SENDING_SECTIONS)
def test_sends_and_receives_are_those_that_the_dispatcher_saw_in_their_order(
    section: str, libraries: list[Ended]
) -> None:
    for rank in libraries:
        seen = rank.told[section]["sends"]

        assert [each.op for each in of_section(rank, section) if each.signature.p2p] == seen
        assert {"send", "recv"} <= set(seen)


def test_every_call_of_the_libraries_has_an_end(libraries: list[Ended]) -> None:
    for rank in libraries:
        open_ended = [(each.op, each.site) for each in rank.log.issued() if each.done is None]
        failed = [(each.op, each.done.error) for each in rank.log.issued() if each.done and each.done.failed]

        assert open_ended == []
        assert failed == []


def test_both_ranks_agree_call_by_call(libraries: list[Ended]) -> None:
    one, other = ([each for each in rank.log.issued() if not each.signature.p2p] for rank in libraries)

    assert [each.signature.agree for each in one] == [each.signature.agree for each in other]
    assert [each.call.chain for each in one] == [each.call.chain for each in other]


def test_peers_of_sends_and_receives_match(libraries: list[Ended]) -> None:
    def routes(op: str, here: int) -> Counter[Any]:
        issued = [each.signature for each in libraries[here].log.issued(op)]
        return Counter((each.peer, each.tag, math.prod(each.shapes[0])) for each in issued)

    for here in (0, 1):
        there = 1 - here
        sent = {(tag, numel): count for (_, tag, numel), count in routes("send", here).items()}
        received = {(tag, numel): count for (_, tag, numel), count in routes("recv", there).items()}
        assert sent == received
        assert {peer for peer, _, _ in routes("send", here)} == {there}


def test_gradients_of_ddp_come_from_the_line_of_the_backward(libraries: list[Ended]) -> None:
    rank = libraries[0]

    reduced = [each for each in of_section(rank, "ddp") if each.op == "all_reduce"]
    assert reduced
    assert {each.site for each in reduced if each.call.backwards} == {f"{rank.line('backward')} train"}


def test_units_of_sharded_models_are_named(libraries: list[Ended]) -> None:
    for section, names in (("fsdp2", {"0", "1"}), ("fsdp", {"0.weight"})):
        gathers = [each for each in of_section(libraries[0], section) if "all_gather" in each.op and each.call.forwards]
        assert names <= {each.signature.module for each in gathers}


def test_splits_are_recorded_as_each_rank_has_them(libraries: list[Ended]) -> None:
    splits = [
        (each.signature.input_splits, each.signature.output_splits)
        for rank in libraries
        for each in of_section(rank, "all_to_all")
        if each.op == "all_to_all_single"
    ]

    assert splits == [([1, 3], [1, 2]), ([2, 4], [3, 4])]


def test_compiled_graph_runs_its_collective_each_time_and_tracing_runs_none(libraries: list[Ended]) -> None:
    issued = of_section(libraries[0], "compiled_graph")

    assert [each.op for each in issued] == ["all_reduce", "all_reduce"]


def test_optimizers_that_nest_end_one_step_each(libraries: list[Ended]) -> None:
    steps = [each for each in libraries[0].log.of(events.Step) if each.end_ns is not None]

    assert len(steps) == 2
    assert all(each.optimizer_ns for each in steps)


def test_pipelines_count_one_forward_for_each_schedule_step(libraries: list[Ended]) -> None:
    for section in ("pipeline_1f1b", "pipeline_gpipe"):
        calls = [each.call for each in of_section(libraries[1], section)]
        assert calls[-1].forwards - calls[0].forwards == 1


def test_recording_says_nothing_to_the_user(libraries: list[Ended]) -> None:
    for rank in libraries:
        assert "distdiag" not in rank.stderr


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_collectives_of_compiled_code_are_recorded(tmp_path: Path) -> None:
    for rank in run(tmp_path, ONLY="compiled_code"):
        issued = of_section(rank, "compiled_code")

        assert [each.op for each in issued] == ["all_reduce", "all_reduce"]
        assert recorded_collectives(rank, "compiled_code") == counted_collectives(rank, "compiled_code")
        assert all(each.done is not None for each in issued)
