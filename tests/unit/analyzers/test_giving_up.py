"""Who was waited for when the first rank gave up, and when that cannot be told."""

import random
from pathlib import Path

import pytest

from distdiag.analyzers import diagnose
from distdiag.findings import Verdict
from tests.logs import SECOND_NS, WORLD, Logs, RankLog

STEP = ("train.py:9 main", "train.py:20 step")
LOAD = "data.py:5 read"
TIMED_OUT = "RuntimeError: Timed out waiting 6000ms for recv operation to complete"
CLOSED = "RuntimeError: Connection closed by peer [127.0.0.1]:1"
TIMEOUT = 6.0
ENOUGH_FOR_CLOCKS = 6
"""Common collectives that make clocks of hosts comparable."""


def verdict(logs: Logs, directory: Path) -> Verdict:
    return diagnose(logs.load(directory)).verdict


def trained(world_size: int, *, steps: int = ENOUGH_FOR_CLOCKS, ranks_per_host: int | None = None) -> Logs:
    logs = Logs(world_size=world_size, ranks_per_host=ranks_per_host, default_group=False)
    for rank in logs:
        rank.group(WORLD, range(world_size), timeout_seconds=TIMEOUT)
        for _ in range(steps):
            rank.all_reduce(STEP)
            rank.end_step()
    return logs


def fail(rank: RankLog, call: int, error: str = TIMED_OUT, seconds: float = TIMEOUT) -> None:
    rank.done(call, seconds=seconds, error=error)
    rank.fault("RuntimeError", error.partition(": ")[2], STEP).exit(1)


def late(rank: RankLog, seconds: float) -> None:
    """A rank whose batch takes so long."""
    rank.batch(LOAD, seconds=seconds)


def now(rank: RankLog) -> float:
    return rank.now_ns / SECOND_NS


def chain(logs: Logs, *, later: float = 7.0, busy: float = 2.0) -> Logs:
    """Rank 0 receives from rank 1, which works first and then receives from rank 2, which loads for ``later``."""
    fail(logs[0], logs[0].recv(1, STEP, pending=True))
    logs[1].sleep(busy).recv(2, STEP, seconds=later - busy)
    fail(logs[1], logs[1].send(0, STEP, pending=True), CLOSED, seconds=0.01)
    late(logs[2], later)
    logs[2].send(1, STEP, seconds=0.0)
    logs[2].exit()
    return logs


def test_the_middle_of_a_chain_that_got_its_message_too_late_is_a_victim(tmp_path: Path) -> None:
    found = verdict(chain(trained(3)), tmp_path)

    assert (found.name, found.culprits, found.victims) == ("late-rank", (2,), (0, 1))
    assert (found.site, found.cause) == ("data.py:5", "data-loading")
    assert "rank 2 came 1.0 s too late to recv 1" in found.summary
    assert "rank 1 waited for it (train.py:20); behind it rank 0, which gave up first, after 6.0 s" in found.summary


def test_a_rank_held_up_in_another_group_is_a_victim(tmp_path: Path) -> None:
    logs = trained(3)
    for rank in logs:
        rank.group("tp", [0, 1], timeout_seconds=TIMEOUT).group("dp", [1, 2], timeout_seconds=60.0)
    fail(logs[0], logs[0].all_reduce(STEP, group="tp", pending=True))
    logs[1].all_reduce(STEP, group="dp", seconds=8.0)
    fail(logs[1], logs[1].all_reduce(STEP, group="tp", pending=True), CLOSED, seconds=0.01)
    late(logs[2], 8.0)
    logs[2].all_reduce(STEP, group="dp")
    logs[2].exit()

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.victims) == ("late-rank", (2,), (0, 1))
    assert "all_reduce 1 of group dp" in found.summary
    assert "it is 6 s now" in " ".join(found.next_steps)


def test_who_held_up_a_late_sender_is_named(tmp_path: Path) -> None:
    logs = trained(3)
    fail(logs[2], logs[2].recv(1, STEP, pending=True))
    logs[1].sleep(3.0).recv(0, STEP, seconds=6.0)
    late(logs[0], 9.0)
    logs[0].send(1, STEP, seconds=0.0)
    logs[0].exit()
    fail(logs[1], logs[1].send(2, STEP, pending=True), CLOSED, seconds=0.01)

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.victims) == ("late-rank", (0,), (1, 2))


def test_two_ranks_late_for_others_each_are_both_named(tmp_path: Path) -> None:
    logs = trained(4)
    for receiver, sender, later in ((0, 1, 7.0), (2, 3, 8.5)):
        logs[receiver].sleep(0.2 * receiver)
        fail(logs[receiver], logs[receiver].recv(sender, STEP, pending=True))
        late(logs[sender], later)
        fail(logs[sender], logs[sender].send(receiver, STEP, pending=True), CLOSED, seconds=0.01)

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.victims) == ("late-rank", (1, 3), (0, 2))
    assert "rank 0 waited for it (train.py:20) and gave up after 6.0 s; rank 2 waited for rank 3" in found.summary


def test_a_sender_that_comes_while_its_receiver_is_giving_up_is_late(tmp_path: Path) -> None:
    logs = trained(2)
    fail(logs[0], logs[0].recv(1, STEP, pending=True), seconds=6.3)
    late(logs[1], 5.9)
    fail(logs[1], logs[1].send(0, STEP, pending=True), CLOSED, seconds=0.41)

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("late-rank", (1,))


def test_calls_after_the_first_gave_up_do_not_hide_that_all_were_in_one(tmp_path: Path) -> None:
    logs = trained(3)
    for rank in logs:
        rank.sleep(0.1 * rank.rank)
        rank.done(rank.all_reduce(STEP, pending=True), seconds=TIMEOUT, error=TIMED_OUT)
        rank.barrier(STEP, error=CLOSED, handling="RuntimeError")
        rank.exit(1)

    assert verdict(logs, tmp_path).name == "transport-stuck"


def test_a_rank_that_works_elsewhere_when_another_gives_up_is_not_named(tmp_path: Path) -> None:
    logs = trained(5)
    for rank in logs.only(3, 4):
        rank.group("own", [3, 4])
        for _ in range(100):
            rank.sleep(0.05 if rank.rank == 4 else 0.01)
            rank.all_reduce(STEP, group="own", seconds=0.001 if rank.rank == 4 else 0.041)
        rank.exit()
    chain(logs)

    assert verdict(logs, tmp_path).culprits == (2,)


def test_a_rank_that_was_held_up_for_most_of_the_wait_is_not_named(tmp_path: Path) -> None:
    logs = trained(3)
    fail(logs[0], logs[0].recv(1, STEP, pending=True))
    logs[2].sleep(5.0).send(1, STEP, seconds=0.0)
    logs[1].recv(2, STEP, seconds=5.0)
    logs[1].sleep(2.0)
    logs[2].exit()
    fail(logs[1], logs[1].send(0, STEP, pending=True), CLOSED, seconds=0.01)

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("insufficient-evidence", ())
    assert "rank 1 had not come, but had itself been held up for 5.0 s of the 6.0 s" in found.summary


# ---- clocks ---------------------------------------------------------------------------------------------------------
def test_clocks_that_nothing_compares_do_not_say_who_came_late(tmp_path: Path) -> None:
    found = verdict(chain(trained(3, steps=0, ranks_per_host=1), later=6.5), tmp_path)

    assert (found.name, found.culprits) == ("insufficient-evidence", ())
    assert "nothing compares the clocks of their hosts" in found.summary


def test_two_collectives_bind_clocks_by_cause_and_effect(tmp_path: Path) -> None:
    logs = chain(trained(3, steps=2, ranks_per_host=1))
    logs[2].header.wall_ns += 100 * SECOND_NS

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("late-rank", (2,))
    assert "rank 2 came 1.0 s too late" in found.summary


def test_clocks_that_collectives_compare_may_be_wrong(tmp_path: Path) -> None:
    logs = chain(trained(3, ranks_per_host=1))
    logs[2].header.wall_ns += 100 * SECOND_NS

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("late-rank", (2,))
    assert "rank 2 came 1.0 s too late" in found.summary


@pytest.mark.parametrize(("later", "name"), [(7.0, "insufficient-evidence"), (40.0, "late-rank")])
def test_clocks_that_agree_badly_tell_only_what_is_beyond_their_error(tmp_path: Path, later: float, name: str) -> None:
    logs = trained(3, steps=0, ranks_per_host=1)
    for number in range(20):
        for rank in logs:
            rank.at(10.0 * (number + 1)).all_reduce(STEP, seconds=2.5 * ((number + rank.rank) % 3))
    for rank in logs:
        rank.at(300.0)

    found = verdict(chain(logs, later=later), tmp_path)

    assert found.name == name
    if name == "insufficient-evidence":
        assert "the clocks of their hosts agree to 2.5 s only" in found.summary
        assert "chronyc tracking" in " ".join(found.next_steps)


# ---- any chain ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(12))
def test_the_end_of_any_chain_is_named(tmp_path: Path, seed: int) -> None:
    """Each rank waits for the next one, in a message or in a group of the two; the last one comes too late."""
    chance = random.Random(seed)
    length = chance.randint(3, 6)
    places = chance.sample(range(length), length)
    logs = trained(length, ranks_per_host=chance.choice([1, 2, length]))
    messages = [chance.random() < 0.5 for _ in range(length - 1)]
    for number in range(length - 1):
        for rank in logs.only(places[number], places[number + 1]):
            rank.group(f"pair{number}", sorted(places[number : number + 2]), timeout_seconds=TIMEOUT)
    start = now(logs[0])
    came = start + TIMEOUT + chance.uniform(0.5, 5.0)
    late(logs[places[-1]], came - start)
    for number in reversed(range(length - 1)):
        waiting, needed = logs[places[number]], logs[places[number + 1]]
        waiting.sleep(0.3 * number)
        _meet(waiting, needed, number, is_message=messages[number])
    logs[places[-1]].exit()

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("late-rank", (places[-1],))
    assert found.victims == tuple(sorted(places[:-1]))


def _meet(waiting: RankLog, needed: RankLog, number: int, *, is_message: bool) -> None:
    """Let a rank wait for the next one: the first in the chain gives up, the others get what they waited for."""
    came = now(needed) - now(waiting)
    group = {} if is_message else {"group": f"pair{number}"}
    if is_message:
        call = waiting.recv(needed.rank, STEP, pending=True)
        answer = needed.send(waiting.rank, STEP, pending=True)
    else:
        call, answer = waiting.all_reduce(STEP, pending=True, **group), needed.all_reduce(STEP, pending=True, **group)
    if number == 0:
        fail(waiting, call)
        fail(needed, answer, CLOSED, seconds=0.01)
    else:
        waiting.done(call, seconds=came)
        needed.done(answer)
