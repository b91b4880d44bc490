"""Ranks that do not meet, told from where each of them joined."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from distdiag.analyzers import diagnose
from distdiag.findings import Verdict
from tests.logs import Logs

JOIN = "train.py:7 main"
HERE = ("10.0.0.1", 29500)
STORE = "torch.distributed.DistStoreError"
NETWORK = "torch.distributed.DistNetworkError"


def joined(
    places: Mapping[int, tuple[str, int | None]],
    tmp_path: Path,
    *,
    world: int = 4,
    sizes: Mapping[int, int] | None = None,
    numbers: Mapping[int, int] | None = None,
    said: Mapping[int, tuple[str, str]] | None = None,
    hosts: int | None = None,
    without: tuple[int, ...] = (),
    seconds: float = 7.0,
    failed: bool = True,
) -> Verdict:
    """Return the verdict on ranks that joined at some places, everybody else at ``HERE``, and waited in vain."""
    logs = Logs(world_size=world, default_group=False, ranks_per_host=hosts)
    for rank in logs:
        address, port = places.get(rank.rank, HERE)
        facts: dict[str, Any] = {
            "address": address,
            "port": port,
            "as_rank": (numbers or {}).get(rank.rank, rank.rank),
            "world_size": (sizes or {}).get(rank.rank, world),
        }
        number = rank.begin_phase("init_process_group", JOIN, **facts)
        rank.pulses(JOIN, seconds=seconds)
        if failed:
            rank.end_phase("init_process_group", number, failed=True)
            kind, message = (said or {}).get(
                rank.rank, (STORE, "wait timeout after 7000ms, keys: /default_pg/0//cpu//0/0")
            )
            rank.fault(kind, message, JOIN)
            rank.exit(1)
    return diagnose(logs.load(tmp_path, without=without)).verdict


def unreached(host: str, port: int) -> tuple[str, str]:
    return NETWORK, f"The client socket has timed out after 7000ms while trying to connect to ({host}, {port})."


@pytest.mark.parametrize("failed", [True, False])
def test_the_one_at_another_port_is_named(tmp_path: Path, failed: bool) -> None:
    verdict = joined({3: ("10.0.0.1", 29501)}, tmp_path, failed=failed)

    assert (verdict.name, verdict.culprits, verdict.cause) == ("group-mismatch", (3,), "other-address")
    assert verdict.victims == (0, 1, 2)
    assert "rank 3 joined at 10.0.0.1:29501, ranks 0-2 at 10.0.0.1:29500" in verdict.summary
    assert verdict.site == "train.py:7"


def test_the_first_rank_may_be_the_odd_one(tmp_path: Path) -> None:
    assert joined({0: ("10.0.0.1", 29400)}, tmp_path).culprits == (0,)


def test_two_equal_sides_are_shown_and_nobody_is_named(tmp_path: Path) -> None:
    verdict = joined({2: ("10.0.0.1", 29501), 3: ("10.0.0.1", 29501)}, tmp_path)

    assert (verdict.name, verdict.culprits, verdict.site) == ("group-mismatch", (), None)
    assert "ranks 0-1 joined at 10.0.0.1:29500, ranks 2-3 at 10.0.0.1:29501" in verdict.summary


def test_of_two_ranks_none_is_the_odd_one(tmp_path: Path) -> None:
    verdict = joined({1: ("10.0.0.1", 29501)}, tmp_path, world=2)

    assert (verdict.name, verdict.culprits) == ("group-mismatch", ())


def test_one_of_another_file_is_named(tmp_path: Path) -> None:
    places = dict.fromkeys(range(3), ("/mnt/meeting", None)) | {3: ("/tmp/meeting", None)}

    assert joined(places, tmp_path).culprits == (3,)


def test_one_of_another_world_is_named(tmp_path: Path) -> None:
    verdict = joined({}, tmp_path, sizes={1: 8})

    assert (verdict.name, verdict.culprits, verdict.cause) == ("group-mismatch", (1,), "other-world-size")
    assert "rank 1 joined a world of 8, ranks 0,2-3 a world of 4" in verdict.summary


def test_one_that_comes_as_another_rank_is_named(tmp_path: Path) -> None:
    verdict = joined({}, tmp_path, numbers={3: 2})

    assert (verdict.name, verdict.culprits, verdict.cause) == ("group-mismatch", (3,), "same-rank")
    assert "ranks 2-3 both joined as rank 2" in verdict.summary
    assert "nobody came as rank 3" in verdict.evidence


def test_other_names_of_the_host_are_no_other_place(tmp_path: Path) -> None:
    verdict = joined({3: ("master.cluster.local", 29500)}, tmp_path)

    assert (verdict.name, verdict.culprits) == ("group-creation-stuck", ())
    assert "rank 3 master.cluster.local:29500" in " ".join(verdict.evidence)


def test_the_first_rank_may_call_itself_as_it_likes(tmp_path: Path) -> None:
    verdict = joined({0: ("localhost", 29500)}, tmp_path, hosts=2, without=(3,))

    assert (verdict.name, verdict.culprits) == ("rank-missing", (3,))


def test_another_address_at_which_nobody_answered_is_another_place(tmp_path: Path) -> None:
    verdict = joined({3: ("10.9.9.9", 29500)}, tmp_path, said={3: unreached("10.9.9.9", 29500)})

    assert (verdict.name, verdict.culprits) == ("group-mismatch", (3,))


def test_who_takes_its_own_host_for_the_first_ones_is_named(tmp_path: Path) -> None:
    verdict = joined({3: ("localhost", 29500)}, tmp_path, hosts=3)

    assert (verdict.name, verdict.culprits, verdict.cause) == ("group-mismatch", (3,), "other-address")


def test_a_loop_back_on_the_first_ones_host_leads_there(tmp_path: Path) -> None:
    assert joined({1: ("localhost", 29500)}, tmp_path, hosts=2).name == "group-creation-stuck"


def test_all_that_cannot_reach_the_first_rank_do_not_accuse_it(tmp_path: Path) -> None:
    away = unreached(*HERE)

    verdict = joined({}, tmp_path, said=dict.fromkeys((1, 2, 3), away))

    assert verdict.name != "group-mismatch"
    assert 0 not in verdict.culprits


def test_one_that_is_cut_off_from_the_store_is_missing_and_says_why(tmp_path: Path) -> None:
    clients = (STORE, "Timed out after 8 seconds waiting for clients. 3/4 clients joined.")

    verdict = joined({}, tmp_path, said={0: clients, 3: unreached(*HERE)})

    assert (verdict.name, verdict.culprits) == ("rank-missing", (3,))
    assert "found no store at 10.0.0.1:29500" in verdict.summary
    assert "firewall" in verdict.next_steps[0]


def test_ports_that_lead_to_one_store_are_one_place(tmp_path: Path) -> None:
    clients = (STORE, "Timed out after 8 seconds waiting for clients. 3/4 clients joined.")

    verdict = joined({1: ("10.0.0.1", 39500), 2: ("10.0.0.1", 39500)}, tmp_path, said={0: clients}, without=(3,))

    assert verdict.name != "group-mismatch"


def test_whose_log_is_elsewhere_is_not_accused_where_only_one_did_not_come(tmp_path: Path) -> None:
    clients = (STORE, "Timed out after 8 seconds waiting for clients. 3/4 clients joined.")

    verdict = joined({}, tmp_path, said={0: clients}, without=(2, 3))

    assert (verdict.name, verdict.culprits) == ("insufficient-evidence", ())


def test_the_key_that_did_not_come_tells_which_of_them(tmp_path: Path) -> None:
    clients = (STORE, "Timed out after 8 seconds waiting for clients. 3/4 clients joined.")
    key = (STORE, "wait timeout after 7000ms, keys: /default_pg/0//cpu//0/3")

    verdict = joined({}, tmp_path, said={0: clients, 1: key}, without=(2, 3))

    assert (verdict.name, verdict.culprits) == ("rank-missing", (3,))


def test_ranks_that_have_just_come_may_still_meet(tmp_path: Path) -> None:
    verdict = joined({3: ("10.0.0.1", 29501)}, tmp_path, seconds=1.0, failed=False)

    assert verdict.name != "group-mismatch"


def test_worlds_that_are_whole_are_none_of_the_trouble(tmp_path: Path) -> None:
    """Two worlds of two ranks, one of which is stuck although both of its ranks came."""
    places = {2: ("10.0.0.1", 29501), 3: ("10.0.0.1", 29501)}

    verdict = joined(places, tmp_path, sizes=dict.fromkeys(range(4), 2), numbers={2: 0, 3: 1})

    assert verdict.name != "group-mismatch"


def test_a_port_that_another_process_holds_is_the_ranks_own_trouble(tmp_path: Path) -> None:
    in_use = (
        NETWORK,
        "The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, "
        "name: EADDRINUSE, message: address already in use",
    )

    verdict = joined({}, tmp_path, said={0: in_use})

    assert (verdict.name, verdict.culprits) == ("rank-died", (0,))
    assert "MASTER_PORT" in verdict.next_steps[0]


def test_a_rank_that_makes_no_store_is_missing_there(tmp_path: Path) -> None:
    logs = Logs(world_size=3, default_group=False)
    number = logs[0].begin_phase("TCPStore", JOIN, address="10.0.0.1", port=29500, world_size=3)
    logs[0].pulses(JOIN, seconds=7.0).end_phase("TCPStore", number, failed=True)
    logs[0].fault(STORE, "Timed out after 7 seconds waiting for clients. 2/3 clients joined.", JOIN).exit(1)
    logs[1].begin_phase("init_process_group", JOIN, address="10.0.0.1", port=29500, as_rank=1, world_size=3)
    logs[1].pulses(JOIN, seconds=7.0)
    logs[2].pulses(JOIN, seconds=7.0)

    verdict = diagnose(logs.load(tmp_path)).verdict

    assert (verdict.name, verdict.culprits) == ("rank-missing", (2,))


@pytest.mark.parametrize("size", [1, 2])
def test_a_store_of_a_few_ranks_misses_nobody_else(tmp_path: Path, size: int) -> None:
    logs = Logs(world_size=3)
    for rank in logs:
        rank.all_reduce()
    logs[0].begin_phase("TCPStore", JOIN, address="10.0.0.1", port=3, world_size=size)
    logs[0].pulses(JOIN, seconds=9.0)
    for rank in logs.but(0):
        rank.pulses(JOIN, seconds=9.0)

    verdict = diagnose(logs.load(tmp_path)).verdict

    assert verdict.name != "rank-missing"
