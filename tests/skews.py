"""Wrong clocks of hosts, and jobs of several hosts that stopped, which must be told alike whatever their clocks say.

``set_clocks`` changes what the clock of each host shows, never what happened. Each of ``STOPS`` lets a job, whose ranks
have stepped together so far, stop in its own way.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from distdiag.events import Event, Header
from distdiag.run.frames import TIMES
from tests.logs import MONOTONIC_NS, SECOND_NS, WORLD, Logs, RankLog

STEP = ("train.py:9 main", "train.py:20 step")
METRICS = ("train.py:9 main", "train.py:31 metrics")
LOAD = "data.py:5 read"
TIMED_OUT = "RuntimeError: Timed out waiting 600000ms for recv operation to complete"
CLOSED = "RuntimeError: Connection closed by peer [127.0.0.1]:1"
TIMEOUT = 600.0
TENSOR, DATA = "tp", "dp"

Skew = tuple[float, float]
"""Seconds by which a clock is ahead when the job begins, and parts per million by which it is fast."""


def set_clocks(logs: Logs, skews: Mapping[str, Skew]) -> Logs:
    """Let the clocks of hosts show other times."""
    for rank in logs:
        ahead, fast = skews.get(rank.header.host, (0.0, 0.0))
        rank.records = [_seen(record, fast / 1e6) for record in rank.records]
        for record in rank.records:
            if isinstance(record, Header):
                record.wall_ns += round(ahead * SECOND_NS)
    return logs


def _seen(record: Event, fast: float) -> Event:
    moments = {name: getattr(record, name) for name in TIMES if getattr(record, name, None) is not None}
    shown = {name: at + round((at - MONOTONIC_NS) * fast) for name, at in moments.items()}
    return msgspec.structs.replace(record, **shown)


def stepped(world_size: int, *, ranks_per_host: int, steps: int) -> Logs:
    """Return a job whose ranks reduced over the world at the end of some steps, and then go their ways."""
    logs = Logs(world_size=world_size, ranks_per_host=ranks_per_host, default_group=False)
    for rank in logs:
        rank.group(WORLD, range(world_size), timeout_seconds=TIMEOUT)
        rank.sleep(1.0)
        for step in range(steps):
            rank.sleep(20.0).all_reduce(STEP, seconds=0.001 + 0.0001 * ((rank.rank + step) % 3))
            rank.sleep(0.001 - 0.0001 * ((rank.rank + step) % 3)).end_step(seconds=0.01)
    return logs


# ---- ways to stop -------------------------------------------------------------------------------------------------
def gave_up(rank: RankLog, call: int, seconds: float = TIMEOUT, error: str = TIMED_OUT) -> None:
    """Let a call fail after so long, and its rank with it; it gives signs of life until then."""
    begun = rank.now_ns
    waiting = seconds - 0.001
    if waiting > 0:
        rank.pulses(STEP, seconds=waiting, waiting=[call], every=20.0)
    rank.now_ns = begun
    rank.done(call, seconds=seconds, error=error)
    rank.fault("RuntimeError", error.partition(": ")[2], STEP).exit(1)


def _others_give_up(logs: Logs, *absent: int, at: float = TIMEOUT) -> None:
    """Let all others wait in a collective; the first to give up does at its timeout, the rest by it a little later."""
    for number, rank in enumerate(logs.but(*absent)):
        late = 0.02 * number
        rank.sleep(late)
        gave_up(rank, rank.all_reduce(STEP, pending=True), at + 0.1 * number)


def in_the_data_loader(logs: Logs) -> None:
    """Rank 1 waits for a batch until it is ended with the others."""
    _others_give_up(logs, 1)
    logs[1].data_loading(LOAD, seconds=TIMEOUT + 5.0)


def too_late(logs: Logs) -> None:
    """Rank 1 comes 90 s after the others gave up."""
    _others_give_up(logs, 1)
    logs[1].batch(LOAD, seconds=TIMEOUT + 90.0)
    gave_up(logs[1], logs[1].all_reduce(STEP, pending=True), 0.01, CLOSED)


def last_rank_too_late(logs: Logs) -> None:
    """The last rank, on another host than the first, comes 8 s after the others gave up."""
    last = logs.world_size - 1
    _others_give_up(logs, last)
    logs[last].batch(LOAD, seconds=TIMEOUT + 8.0)
    gave_up(logs[last], logs[last].all_reduce(STEP, pending=True), 0.01, CLOSED)


def one_call_more(logs: Logs) -> None:
    """Rank 1 logs metrics that nobody else does."""
    logs[1].all_reduce(METRICS, shape=(1,), pending=True)
    for rank in logs.but(1):
        rank.all_reduce(STEP, pending=True)
    for rank in logs:
        gave_up(rank, rank.calls, TIMEOUT + 0.1 * rank.rank)


def all_receive(logs: Logs) -> None:
    """Each rank receives from the next one before it sends."""
    for rank in logs:
        gave_up(rank, rank.recv((rank.rank + 1) % logs.world_size, STEP, pending=True), TIMEOUT + 0.3 * rank.rank)


def killed(logs: Logs) -> None:
    """Rank 1 goes without a word in its own work, which the others see within a second."""
    logs[1].pulses(LOAD, seconds=30.0, every=1.0)
    for rank in logs.but(1):
        gave_up(rank, rank.all_reduce(STEP, pending=True), 30.4 + 0.1 * rank.rank, CLOSED)


def out_of_memory(logs: Logs) -> None:
    """The last rank runs out of memory; the others lose their connections to it."""
    last = logs[logs.world_size - 1]
    last.sleep(3.0).fault("OutOfMemoryError", "CUDA out of memory.", "model.py:8 forward", fault="out-of-memory")
    last.exit(1)
    for rank in logs.but(last.rank):
        gave_up(rank, rank.all_reduce(STEP, pending=True), 3.5 + 0.1 * rank.rank, CLOSED)


def raised(logs: Logs) -> None:
    """Rank 1 raises an error of its own; the others lose their connections to it."""
    logs[1].sleep(2.0).fault("KeyError", "'labels'", LOAD).exit(1)
    for rank in logs.but(1):
        gave_up(rank, rank.all_reduce(STEP, pending=True), 2.5 + 0.1 * rank.rank, CLOSED)


def frozen(logs: Logs) -> None:
    """Rank 1 gives no sign of life any more."""
    logs[1].pulses(LOAD, seconds=2.0, every=1.0)
    _others_give_up(logs, 1)


def all_in_one(logs: Logs) -> None:
    """All ranks are in one collective that does not end."""
    for rank in logs:
        rank.sleep(0.02 * rank.rank)
        gave_up(rank, rank.all_reduce(STEP, pending=True), TIMEOUT + 0.1 * rank.rank)


def some_first(logs: Logs) -> None:
    """All ranks are in one collective that does not end; the first to give up ends it for the others."""
    for rank in logs:
        rank.sleep(4.0 * rank.rank)
        if rank.rank:
            gave_up(rank, rank.all_reduce(STEP, pending=True), TIMEOUT + 0.2 - 4.0 * rank.rank, CLOSED)
        else:
            gave_up(rank, rank.all_reduce(STEP, pending=True))


def chain_of_messages(logs: Logs) -> None:
    """Rank 0 waits for the next, this one for the next, and so on; the last loads data for too long."""
    last = logs.world_size - 1
    came = TIMEOUT + 30.0
    gave_up(logs[0], logs[0].recv(1, STEP, pending=True))
    for rank in logs.but(0, last):
        rank.sleep(0.5 * rank.rank).recv(rank.rank + 1, STEP, seconds=came - 0.5 * rank.rank)
        if rank.rank == 1:
            gave_up(rank, rank.send(0, STEP, pending=True), 0.01, CLOSED)
        else:
            rank.send(rank.rank - 1, STEP, seconds=0.0)
            rank.exit()
    logs[last].batch(LOAD, seconds=came).send(last - 1, STEP, seconds=0.0)
    logs[last].exit()


def over_two_groups(logs: Logs) -> None:
    """Of ranks in pairs, the last of the second pair is late for its tensor group, and so is that for data groups."""
    size = logs.world_size
    pairs = [(first, first + 1) for first in range(0, size, 2)]
    columns = [tuple(range(place, size, 2)) for place in (0, 1)]
    for rank in logs:
        for group, ranks in (*((TENSOR, pair) for pair in pairs), *((DATA, column) for column in columns)):
            if rank.rank in ranks:
                rank.group(f"{group}{ranks[0]}", ranks, timeout_seconds=TIMEOUT)
    culprit, partner = size - 1, size - 2
    logs[culprit].batch(LOAD, seconds=TIMEOUT + 20.0)
    logs[partner].all_reduce(STEP, group=f"{TENSOR}{partner}", seconds=TIMEOUT + 20.0)
    logs[culprit].all_reduce(STEP, group=f"{TENSOR}{partner}")
    for rank in logs.but(culprit, partner):
        rank.all_reduce(STEP, group=f"{TENSOR}{pairs[rank.rank // 2][0]}")
        gave_up(rank, rank.all_reduce(STEP, group=f"{DATA}{rank.rank % 2}", pending=True), TIMEOUT + 0.2 * rank.rank)
    for rank in logs.only(culprit, partner):
        call = rank.all_reduce(STEP, group=f"{DATA}{rank.rank % 2}", pending=True)
        gave_up(rank, call, 0.01, CLOSED)


def group_never_made(logs: Logs) -> None:
    """All but rank 1 ask for a group and give up; it loads data."""
    for rank in logs.but(1):
        number = rank.begin_phase("new_group", STEP, index=0, ranks=list(range(logs.world_size)))
        rank.sleep(TIMEOUT + 0.1 * rank.rank).end_phase("new_group", number, failed=True)
        rank.fault("RuntimeError", "Timed out", STEP).exit(1)
    logs[1].data_loading(LOAD, seconds=TIMEOUT + 5.0)


def group_asked_for_too_late(logs: Logs) -> None:
    """All but the last rank ask for a group and give up; it asks 40 s later."""
    last = logs[logs.world_size - 1]
    members = list(range(logs.world_size))
    for rank in logs.but(last.rank):
        number = rank.begin_phase("new_group", STEP, index=0, ranks=members)
        rank.sleep(TIMEOUT + 0.1 * rank.rank).end_phase("new_group", number, failed=True)
        rank.fault("RuntimeError", "Timed out", STEP).exit(1)
    last.batch(LOAD, seconds=TIMEOUT + 40.0)
    number = last.begin_phase("new_group", STEP, index=0, ranks=members)
    last.sleep(0.1).end_phase("new_group", number, failed=True)
    last.fault("RuntimeError", "Connection closed by peer", STEP).exit(1)


def group_that_all_ask_for(logs: Logs) -> None:
    """All ranks ask for a group that is never made, one after the other, and give up."""
    for rank in logs:
        rank.sleep(2.0 * rank.rank)
        number = rank.begin_phase("new_group", STEP, index=0, ranks=list(range(logs.world_size)))
        rank.sleep(TIMEOUT).end_phase("new_group", number, failed=True)
        rank.fault("RuntimeError", "Timed out", STEP).exit(1)


def left_early(logs: Logs) -> None:
    """Rank 1 ends in an orderly way; the others go on."""
    logs[1].exit()
    _others_give_up(logs, 1)


STOPS: Sequence[Callable[[Logs], None]] = (
    in_the_data_loader,
    too_late,
    last_rank_too_late,
    one_call_more,
    all_receive,
    killed,
    out_of_memory,
    raised,
    frozen,
    all_in_one,
    some_first,
    chain_of_messages,
    over_two_groups,
    group_never_made,
    group_asked_for_too_late,
    group_that_all_ask_for,
    left_early,
)
