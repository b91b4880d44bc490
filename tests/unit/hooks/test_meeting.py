"""Where a process means to meet the others, and as whom: told before it waits there."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed

from distdiag import events
from distdiag.hooks._meeting import meeting_of
from tests.ranks import free_port
from tests.recordings import Recording, recording

dist: Any = torch.distributed
ENVIRONMENT = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500", "RANK": "3", "WORLD_SIZE": "8"}
SHORT = timedelta(seconds=10)


def begun(recorded: Recording, phase: str = "init_process_group") -> events.Phase:
    return next(each for each in recorded.log.phases(phase) if each.edge == "begin")


def told(phase: events.Phase) -> tuple[str | None, int | None, int | None, int | None, str | None]:
    return phase.address, phase.port, phase.as_rank, phase.world_size, phase.backend


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((), {}, {"address": "node0", "port": 29500, "as_rank": 3, "world_size": 8}),
        (("gloo", "env://"), {}, {"address": "node0", "port": 29500, "as_rank": 3, "world_size": 8, "backend": "gloo"}),
        (("gloo",), {"rank": 5}, {"address": "node0", "port": 29500, "as_rank": 5, "world_size": 8, "backend": "gloo"}),
        (
            ("nccl", "tcp://10.1.1.20:23456", None, 4, 1),
            {},
            {"address": "10.1.1.20", "port": 23456, "as_rank": 1, "world_size": 4, "backend": "nccl"},
        ),
        (
            (),
            {"init_method": "tcp://h:1?rank=2&world_size=3"},
            {"address": "h", "port": 1, "as_rank": 2, "world_size": 3},
        ),
        ((), {"init_method": "file:///mnt/meeting", "rank": 0}, {"address": "/mnt/meeting", "as_rank": 0}),
    ],
)
def test_what_a_call_is_told_and_what_it_looks_up(
    args: tuple[Any, ...], kwargs: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert meeting_of(args, kwargs, ENVIRONMENT) == expected


@pytest.mark.parametrize("url", ["", "tcp://", "mpi://x", "env://?rank=many", "tcp://h"])
def test_an_address_without_sense_tells_less(url: str) -> None:
    assert "port" not in meeting_of((), {"init_method": url}, {})


def test_a_variable_without_sense_is_not_told() -> None:
    assert meeting_of((), {}, {"MASTER_ADDR": "h", "MASTER_PORT": "${PORT}"}) == {"address": "h"}


def test_a_meeting_in_a_file_is_recorded(tmp_path: Path) -> None:
    place = tmp_path / "meeting"
    with recording(tmp_path / "logs") as made:
        dist.init_process_group("gloo", init_method=f"file://{place}", rank=0, world_size=1)
        dist.destroy_process_group()

        assert told(begun(made)) == (str(place), None, 0, 1, "gloo")


def test_a_store_of_the_script_tells_where_it_is(tmp_path: Path) -> None:
    port = free_port()
    with recording(tmp_path / "logs") as made:
        store = dist.PrefixStore("mine", dist.TCPStore("127.0.0.1", port, 1, True, timeout=SHORT))
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        dist.destroy_process_group()

        assert told(begun(made, "TCPStore")) == ("127.0.0.1", port, None, 1, None)
        assert told(begun(made)) == ("127.0.0.1", port, 0, 1, "gloo")


def test_the_store_that_joining_makes_itself_is_no_phase_of_its_own(tmp_path: Path) -> None:
    with recording(tmp_path / "logs") as made:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1)
        dist.destroy_process_group()

        assert made.log.phases("TCPStore") == []


def test_a_store_in_memory_is_told_by_its_class(tmp_path: Path) -> None:
    with recording(tmp_path / "logs") as made:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        dist.destroy_process_group()

        assert told(begun(made)) == ("HashStore", None, 0, 1, "gloo")


def test_a_mesh_joins_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    port = free_port()
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    with recording(tmp_path / "logs") as made:
        init_device_mesh("cpu", (1,))
        dist.destroy_process_group()
        monkeypatch.setenv("MASTER_PORT", "1")

        assert told(begun(made))[:4] == ("127.0.0.1", port, 0, 1)


def test_a_process_that_is_told_its_rank_only_by_the_call_has_it_before_it_waits(tmp_path: Path) -> None:
    with recording(tmp_path / "logs") as made:
        with pytest.raises(RuntimeError):
            dist.init_process_group(
                "gloo",
                init_method=f"tcp://127.0.0.1:{free_port()}",
                rank=1,
                world_size=2,
                timeout=timedelta(seconds=1),
            )

        assert [header.rank for header in made.log.of(events.Header)][-1] == 1
        assert [(each.edge, each.failed) for each in made.log.phases("init_process_group")] == [
            ("begin", False),
            ("end", True),
        ]
