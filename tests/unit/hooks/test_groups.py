"""Process groups: their members and timeouts, and the phases of making and destroying them."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed

import distdiag
from distdiag import events
from distdiag.errors import RAISE_OWN_ERRORS
from tests.ranks import launch
from tests.recordings import Recording, floats, lonely_world, pretended_world, read_logs, recording

dist: Any = torch.distributed


def edges(recorded: Recording, phase: str) -> list[str]:
    return [each.edge for each in recorded.log.phases(phase)]


def begins(recorded: Recording, phase: str) -> list[events.Phase]:
    return [each for each in recorded.log.phases(phase) if each.edge == "begin"]


def test_making_and_destroying_the_default_group_are_phases(tmp_path: Path) -> None:
    with recording(tmp_path) as made, lonely_world():
        assert edges(made, "init_process_group") == ["begin", "end"]
        assert edges(made, "destroy_process_group") == []

        dist.destroy_process_group()

        assert edges(made, "destroy_process_group") == ["begin", "end"]


def test_phase_of_a_group_tells_where_it_is_made(recorded: Recording) -> None:
    dist.new_group([0, 1])

    (begun,) = begins(recorded, "new_group")
    assert begun.path is not None
    assert "test_phase_of_a_group_tells" in recorded.log.paths()[begun.path][-1]


def test_default_group_is_recorded_with_its_members_and_backend(tmp_path: Path) -> None:
    with recording(tmp_path) as made, lonely_world():
        (group,) = made.log.of(events.Group)

        assert group.group == dist.group.WORLD.group_name
        assert group.description == "default_pg"
        assert group.ranks == [0]
        assert group.backend == "gloo"


def test_new_group_is_numbered_with_the_members_asked_for(recorded: Recording) -> None:
    dist.new_group([0, 2])
    dist.new_group([1, 3])
    dist.new_group()

    asked = [(each.index, each.ranks) for each in begins(recorded, "new_group")]
    assert asked == [(0, [0, 2]), (1, [1, 3]), (2, [0, 1, 2, 3])]
    assert edges(recorded, "new_group") == ["begin", "end"] * 3


def test_group_without_this_rank_is_asked_for_but_not_known(recorded: Recording) -> None:
    dist.new_group([0, 2])

    assert len(begins(recorded, "new_group")) == 1
    assert [each.description for each in recorded.log.of(events.Group)] == ["default_pg"]


def test_group_that_other_ranks_need_not_ask_for_has_no_index(recorded: Recording) -> None:
    dist.new_group([1, 3], use_local_synchronization=True)
    dist.new_group([1, 2])

    local, ordinary = begins(recorded, "new_group")
    assert (local.local, local.index) == (True, None)
    assert (ordinary.local, ordinary.index) == (False, 0)


def test_group_that_cannot_be_made_is_a_failed_phase(recorded: Recording) -> None:
    with pytest.raises((RuntimeError, ValueError)):
        dist.new_group([0, 99])

    assert [each.failed for each in recorded.log.phases("new_group")] == [False, True]


def test_splitting_a_group_is_a_phase_also_where_the_backend_refuses(recorded: Recording) -> None:
    with pytest.raises(RuntimeError, match="not safe to split"):
        dist.split_group(None, [[0, 1], [2, 3]])

    assert [(each.edge, each.failed) for each in recorded.log.phases("split_group")] == [
        ("begin", False),
        ("end", True),
    ]


def test_timeout_in_force_is_recorded_and_a_new_group_does_not_inherit_it(tmp_path: Path) -> None:
    with recording(tmp_path) as made:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=17))
        try:
            dist.new_group([0])
            dist.new_group([0], timeout=timedelta(seconds=5))

            timeouts = [each.timeout_seconds for each in made.log.of(events.Group)]
            asked = [each.timeout_seconds for each in begins(made, "new_group")]
            default = dist.distributed_c10d.default_pg_timeout.total_seconds()
        finally:
            dist.destroy_process_group()

    assert timeouts == [17.0, default, 5.0]
    assert asked == [None, 5.0]


def test_mesh_asks_for_its_groups_as_the_user_would(recorded: Recording) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))

    members = [each.ranks for each in recorded.log.of(events.Group) if each.description != "default_pg"]
    assert [1, 3] in members
    assert [0, 1] in members
    assert all(begun.path is not None for begun in begins(recorded, "new_group") + begins(recorded, "split_group"))


def test_groups_are_known_where_recording_begins_late(tmp_path: Path) -> None:
    with pretended_world():
        dist.new_group([1, 3])
        with recording(tmp_path) as made:
            assert sorted(each.members() for each in made.log.of(events.Group)) == [(0, 1, 2, 3), (1, 3)]
            assert list(read_logs(tmp_path)) == ["rank00001"]


def test_rank_is_learned_from_the_default_group(tmp_path: Path) -> None:
    with recording(tmp_path) as made:
        (before,) = read_logs(tmp_path)
        assert "rank" not in before
        with pretended_world():
            dist.barrier()

    assert list(read_logs(tmp_path)) == ["rank00001"]
    header = made.log.of(events.Header)[-1]
    assert (header.rank, header.world_size) == (1, 4)


def test_second_world_counts_its_calls_anew_and_its_groups_on(tmp_path: Path) -> None:
    with recording(tmp_path) as made:
        for _ in range(2):
            with lonely_world():
                dist.barrier()
                dist.new_group([0])

        assert [each.call.seq for each in made.log.issued("barrier")] == [1, 1]
        assert [each.index for each in begins(made, "new_group")] == [0, 1]


def test_group_destroyed_alone_leaves_the_others_known(tmp_path: Path) -> None:
    with recording(tmp_path) as made, lonely_world():
        group = dist.new_group([0])
        dist.barrier()
        dist.destroy_process_group(group)
        dist.barrier()

        assert [each.call.seq for each in made.log.issued("barrier")] == [1, 2]
        assert len(made.log.of(events.Group)) == 2


def test_broken_recording_does_not_keep_a_group_from_being_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_args: object, **_facts: object) -> None:
        raise OSError("no more room")

    monkeypatch.delenv(RAISE_OWN_ERRORS)
    with recording(tmp_path) as made:
        monkeypatch.setattr(type(made.recorder), "write", broken)
        with lonely_world():
            group = dist.new_group([0])
            tensor = floats(2)
            dist.all_reduce(tensor, group=group)

    assert tensor.tolist() == [1, 1]
    assert not distdiag.is_recording()


# ---- between ranks -----------------------------------------------------------------------------------------------
LEFT_ALONE = """
import os
from datetime import timedelta
import torch.distributed as dist
import distdiag

distdiag.install()
dist.init_process_group("gloo", timeout=timedelta(seconds=2))
if dist.get_rank() == 0:
    try:
        dist.new_group([0, 1], timeout=timedelta(seconds=2))  # LINE alone
    except Exception as error:
        print(type(error).__name__)
os._exit(0)
"""


def test_new_group_that_peers_do_not_ask_for_begins_and_fails(tmp_path: Path) -> None:
    alone, gone = launch(LEFT_ALONE, tmp_path)

    begun, ended = alone.log.phases("new_group")
    assert (begun.edge, ended.edge, ended.failed) == ("begin", "end", True), alone.stderr
    assert begun.ranks == [0, 1]
    assert begun.timeout_seconds == 2.0
    assert gone.log.phases("new_group") == []
