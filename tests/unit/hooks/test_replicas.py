"""Data-parallel wrappers: checksums of replicas, and steps with gradients of one rank alone."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.nn.parallel import DistributedDataParallel

import distdiag
from distdiag import events
from distdiag.hooks._checksums import MOST_DIGESTS, digests_of, sums_of
from distdiag.hooks.replicas import FIRST_STEPS
from tests.recordings import Recording, pretended_world, recording


def averaged(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """Do what DDP does by itself; its own way needs peers that answer."""
    dist.all_reduce(bucket.buffer())
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


class Job:
    """A replica, its optimizer and what it takes to train them for a step."""

    def __init__(self, hook: Any = averaged) -> None:
        torch.manual_seed(0)
        self.model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1)))
        if hook is not None:
            self.model.register_comm_hook(None, hook)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def accumulate(self, model: nn.Module | None = None) -> None:
        (model or self.model)(torch.ones(2, 4)).sum().backward()

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.accumulate()
            self.step()


def of_replicas(recorded: Recording) -> list[events.Numerics]:
    return [each for each in recorded.log.of(events.Numerics) if each.wrapper is not None]


def apart(recorded: Recording) -> list[tuple[int, str | None]]:
    return [(each.step, each.unsynchronised) for each in of_replicas(recorded) if each.unsynchronised]


def checked_steps(recorded: Recording) -> list[int]:
    return [each.step for each in of_replicas(recorded) if each.checksum is not None]


# ---- checksums ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.uint8])
@pytest.mark.parametrize("length", [1, 2, 7, 64, 65])
def test_any_flipped_bit_changes_the_digest(dtype: torch.dtype, length: int) -> None:
    tensor = torch.arange(length + 1).to(dtype)[1:]  # not at a multiple of eight bytes
    whole = digests_of(sums_of([tensor]).tolist())

    flipped = set()
    for position in range(tensor.numel() * tensor.element_size()):
        for bit in range(8):
            copy = tensor.clone()
            copy.view(torch.uint8)[position] ^= 1 << bit
            flipped.add(digests_of(sums_of([copy]).tolist())[0])

    assert whole[0] not in flipped


def test_equal_values_have_equal_digests_wherever_they_lie() -> None:
    values = torch.randn(4, 6)
    moved = torch.randn(30)[3:27].view(4, 6).copy_(values)
    transposed = values.t().contiguous().t()

    first, second, third = digests_of(sums_of([values, moved, transposed]).tolist())

    assert first == third
    assert (first == second) == (moved.storage_offset() % 2 == 0)


def test_many_parameters_share_digests() -> None:
    digests = digests_of(range(3 * MOST_DIGESTS))

    assert len(digests) == MOST_DIGESTS
    assert digests_of([*range(3 * MOST_DIGESTS - 1), 7])[:-1] == digests[:-1]


def test_first_steps_are_checked_and_then_every_so_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTDIAG_CHECKSUM_EVERY", "5")
    with recording(tmp_path) as made, pretended_world():
        Job().train(11)

        assert checked_steps(made) == [*range(FIRST_STEPS), 5, 10]


def test_steps_between_are_checked_ever_more_seldom(tmp_path: Path) -> None:
    with recording(tmp_path) as made, pretended_world():
        Job().train(40)

        assert checked_steps(made) == [*range(FIRST_STEPS), 8, 16, 32]


def test_no_checksums_where_they_are_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTDIAG_CHECKSUM_EVERY", "off")
    with recording(tmp_path) as made, pretended_world():
        Job().train(2)

        assert checked_steps(made) == []


def test_one_changed_parameter_changes_its_digest_alone(recorded: Recording) -> None:
    job = Job()
    job.optimizer.param_groups[0]["lr"] = 0.0
    job.train(1)
    job.model.module[1].weight.data[0, 0] += 1.0
    job.train(1)

    (wrapper,) = recorded.log.of(events.Wrapper)
    before, after = (each for each in of_replicas(recorded) if each.checksum is not None)

    assert wrapper.parameters == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert [before.digests[4 * i : 4 * i + 4] != after.digests[4 * i : 4 * i + 4] for i in range(4)] == [
        False,
        False,
        True,
        False,
    ]
    assert before.checksum != after.checksum


def test_replicas_that_are_apart_on_purpose_are_not_checked(recorded: Recording) -> None:
    Job(noop_hook).train(2)

    assert of_replicas(recorded) == []


def test_model_alone_has_no_peers_to_compare(alone: Recording) -> None:
    Job().train(2)

    assert of_replicas(alone) == []


# ---- gradients without peers ----------------------------------------------------------------------------------------
def test_accumulation_whose_last_pass_is_averaged_is_in_order(recorded: Recording) -> None:
    job = Job()
    for _ in range(3):
        with job.model.no_sync():
            job.accumulate()
        job.accumulate()
        job.step()

    assert apart(recorded) == []


def test_evaluation_before_a_step_is_no_forward_without_peers(recorded: Recording) -> None:
    job = Job()
    job.accumulate()
    with torch.no_grad(), job.model.no_sync():
        job.model(torch.ones(2, 4))
    job.step()

    assert apart(recorded) == []


def test_last_pass_under_no_sync_leaves_gradients_apart(recorded: Recording) -> None:
    job = Job()
    job.train(1)
    job.accumulate()
    with job.model.no_sync():
        job.accumulate()
    job.step()

    assert apart(recorded) == [(1, "no_sync")]


def test_step_after_one_without_peers_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTDIAG_CHECKSUM_EVERY", "1000")
    with recording(tmp_path) as made, pretended_world():
        job = Job()
        job.train(4)
        with job.model.no_sync():
            job.accumulate()
        job.step()
        job.train(2)

        assert checked_steps(made) == [*range(FIRST_STEPS), 5]


def test_model_called_without_its_wrapper_leaves_gradients_apart(recorded: Recording) -> None:
    job = Job()
    job.train(1)
    job.accumulate(job.model.module)
    job.step()

    assert apart(recorded) == [(1, "bypassed")]


def test_model_called_without_its_wrapper_in_the_first_step_leaves_gradients_apart(recorded: Recording) -> None:
    job = Job()
    job.accumulate(job.model.module)
    job.step()

    assert apart(recorded) == [(0, "bypassed")]


def test_numbers_of_the_optimizer_are_told_with_the_checks(recorded: Recording) -> None:
    job = Job()
    job.optimizer.param_groups[0]["momentum"] = 0.5
    job.train(2)

    first, second = (each.optimizer for each in recorded.log.of(events.Numerics) if each.optimizer)
    assert (first["lr"], first["momentum"], first["parameters with a state"]) == (0.1, 0.5, 0)
    assert second["parameters with a state"] == 4


def test_shards_of_flat_parameters_that_other_ranks_hold_too_are_checked(recorded: Recording) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model: Any = FullyShardedDataParallel(
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)),
        device_mesh=mesh,
        sharding_strategy=ShardingStrategy.HYBRID_SHARD,
        device_id=torch.device("cpu"),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()

    (replicated,) = [each for each in recorded.log.of(events.Wrapper) if each.name == events.HYBRID]
    assert [each.wrapper for each in of_replicas(recorded) if each.checksum is not None] == [replicated.wrapper]


def test_gradients_averaged_by_hand_are_in_order(recorded: Recording) -> None:
    job = Job()
    job.train(1)
    job.accumulate(job.model.module)
    for parameter in job.model.parameters():
        dist.all_reduce(parameter.grad)
    job.step()

    assert apart(recorded) == []


@pytest.mark.parametrize(("least", "names"), [(1, [events.BY_HAND]), (2, [events.BESIDE]), (3, [events.BESIDE])])
def test_parameters_that_a_script_leaves_out_are_checked_where_it_averages_others(
    recorded: Recording, least: int, names: list[str]
) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    for parameter in model.parameters():
        if parameter.ndim >= least:
            dist.all_reduce(parameter.grad)
    optimizer.step()

    wrappers = recorded.log.of(events.Wrapper)
    assert [each.name for each in wrappers] == names
    assert [len(each.parameters) for each in wrappers] == [4] * len(names)
    assert [each.gradients is not None for each in of_replicas(recorded)] == [name == events.BY_HAND for name in names]


@pytest.mark.parametrize(("averaged_layer", "names"), [(0, [events.BESIDE]), (2, []), (3, [events.BESIDE])])
def test_few_that_are_averaged_tell_of_the_others_and_so_does_nothing_but_single_numbers(
    recorded: Recording, averaged_layer: int, names: list[str]
) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 40), nn.Linear(40, 1), nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    dist.all_reduce(torch.ones(1))  # a loss, for a log
    for parameter in model[averaged_layer].parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()

    assert [each.name for each in recorded.log.of(events.Wrapper)] == names


# ---- local gradients ------------------------------------------------------------------------------------------------
def test_gradient_of_one_rank_that_is_not_finite_is_seen_before_it_is_averaged(recorded: Recording) -> None:
    job = Job()
    job.model.module[1].register_full_backward_pre_hook(lambda module, gradients: (gradients[0] * float("nan"),))
    job.accumulate()
    job.step()

    assert ["gradient"] in [each.nonfinite for each in recorded.log.of(events.Numerics)]


def test_nothing_stays_on_parameters_after_recording(tmp_path: Path) -> None:
    with recording(tmp_path), pretended_world():
        job = Job()
        watched = [p for p in job.model.parameters() if p._post_accumulate_grad_hooks]
        assert watched
        distdiag.uninstall()

        assert not any(p._post_accumulate_grad_hooks for p in watched)


def test_recording_keeps_no_model_alive(recorded: Recording) -> None:
    import gc
    import weakref

    job = Job()
    job.train(1)
    model = weakref.ref(job.model)
    del job
    gc.collect()

    assert model() is None


def test_what_is_trained_beside_a_wrapper_is_checked_apart(tmp_path: Path) -> None:
    with recording(tmp_path) as made, pretended_world():
        job = Job()
        head = nn.Linear(3, 1)
        job.optimizer.add_param_group({"params": list(head.parameters())})
        head(torch.ones(3)).sum().backward()
        job.train(2)

        (beside,) = [each for each in made.log.of(events.Wrapper) if each.name == events.BESIDE]
        assert (beside.parameters, beside.size_bytes) == (["0 (1x3)", "1 (1)"], 16)
        assert [each.step for each in made.log.of(events.Numerics) if each.wrapper == beside.wrapper] == [0, 1]
