"""What the records of a log say of the present: each kind changes the state of its rank."""

from collections.abc import Callable
from typing import Any

from distdiag import events
from distdiag.live.ranks import GROUPS_KEPT, OPEN_CALLS_KEPT, OTHERS, MemorySample, OpenPhase, RankState, StepTimes

MEMORY_EVERY_NS = 2_000_000_000
"""A trend of memory needs no more samples than that."""
KEPT_APART_NS = 50_000_000
"""Steps that follow one another faster are not all kept."""
SUMS = ("all_reduce", "all_reduce_coalesced")
POLLED = "poll"
"""The clock of an end that nobody waited for."""
ORDERLY = frozenset({"SystemExit", "KeyboardInterrupt"})
"""Exceptions that end a process by somebody's wish."""


def take(state: RankState, record: events.Record) -> None:
    """Learn from a record; kinds that say nothing about the present are left out."""
    taker = _TAKERS.get(type(record))
    if taker is not None:
        taker(state, record)


def _take_pulse(state: RankState, pulse: events.Pulse) -> None:
    now = state.last_ns = pulse.time_ns
    moved = pulse.calls != state.pulse_calls or pulse.phase != state.phase or pulse.step != state.step
    if pulse.still_ns is not None:
        state.progress_ns = now - pulse.still_ns
    elif moved:
        state.progress_ns = now
    if pulse.activity != state.activity:
        if state.activity is not None:
            _note_length(state, state.activity, now - state.activity_since_ns)
        state.activity, state.activity_since_ns = pulse.activity, now
    state.step, state.phase, state.path = pulse.step, pulse.phase, pulse.path
    state.waiting, state.pulse_calls = pulse.waiting, pulse.calls
    if pulse.stall_after_seconds is not None:
        state.limit_seconds = pulse.stall_after_seconds
    if pulse.calls or pulse.step:
        state.started = True
    if pulse.cpu_ns is not None:
        if state.cpu_at is not None and now > state.cpu_at[1]:
            state.cpu_share = (pulse.cpu_ns - state.cpu_at[0]) / (now - state.cpu_at[1])
        state.cpu_at = pulse.cpu_ns, now
    _take_links(state, pulse, moved)
    if pulse.rss_bytes is not None:
        _note_memory(state, now, pulse.rss_bytes, None)


def _take_links(state: RankState, pulse: events.Pulse, moved: bool) -> None:
    if pulse.links:
        state.groups.links.learn(state.rank, pulse.links, pulse.unanswered)
    elif moved:
        state.groups.links.forget(state.rank)


def _take_call(state: RankState, call: events.Call) -> None:
    if call.call != (state.last_call.call if state.last_call is not None else 0) + 1:
        state.kinds.miss()
    state.last_call = call
    state.step = call.step
    if call.start_ns > state.progress_ns:
        state.last_ns = state.progress_ns = call.start_ns
    state.started = True
    if state.held_since_ns is not None:
        _count_busy(state, state.held_since_ns, call.start_ns)
    state.held_since_ns = call.start_ns
    state.open_calls[call.call] = call
    if len(state.open_calls) > OPEN_CALLS_KEPT:
        del state.open_calls[next(iter(state.open_calls))]
    signature = state.signatures.get(call.signature)
    if signature is not None:
        _count(state, call, signature)


def _count(state: RankState, call: events.Call, signature: events.Signature) -> None:
    """Note how far the rank is in the call's group."""
    kind = state.kinds.read(call.call, signature) if signature.reduce_op is not None else None
    if signature.p2p or call.captured or not call.seq:
        return
    state.sequences[signature.group] = call.seq
    group = state.groups.of(state.rank, signature.group)
    if group is not None:
        group.note(state.rank, call.seq, call.chain, signature, kind)


def _take_done(state: RankState, done: events.Done) -> None:
    call = state.open_calls.pop(done.call, None)
    if call is None:
        return
    if done.failed:
        state.failed_call = call
    newest = state.last_call is call
    if newest or done.clock != POLLED:
        _count_busy(state, max(call.start_ns, done.wait_start_ns or 0), done.end_ns)
    if newest:
        state.held_since_ns = None


def _count_busy(state: RankState, since_ns: int, until_ns: int) -> None:
    """Count time in which calls held a rank up.

    These are the waits, and of calls that nobody waits for by name the newest one: a rank that issues another call
    was not held by the one before, however long that goes on in the background.
    """
    since_ns = max(since_ns, state.busy_until_ns)
    if until_ns > since_ns:
        state.busy_ns += until_ns - since_ns
        state.busy_until_ns = until_ns


def _take_step(state: RankState, step: events.Step) -> None:
    if step.end_ns is not None and step.start_ns is not None:
        duration = step.end_ns - step.start_ns
        own = _own_ns(state, step, duration)
        if step.step % _thinning(duration) == 0:
            state.steps.append(StepTimes(step.step, step.end_ns, duration, own))
        state.step = step.step + 1
        state.steps_seen += 1
        if step.end_ns > state.progress_ns:
            state.last_ns = state.progress_ns = step.end_ns
        state.started = True
    for key, sums in step.rollups.items():
        _add(state, key.rpartition("/")[0], sums)
    for replicas in state.groups.replicas.first_of(state.rank):
        replicas.end_step(step.step, _summed_bytes(state, step, replicas.members))
    if step.facts:
        state.facts.update(step.facts)
        tokens = step.facts.get("tokens")
        if isinstance(tokens, int | float):
            state.tokens.append((state.progress_ns, float(tokens)))


def _summed_bytes(state: RankState, step: events.Step, members: tuple[int, ...]) -> int:
    """Return the bytes that were summed over all of some ranks in a step."""
    total = 0
    for key, sums in step.rollups.items():
        name, _, op = key.rpartition("/")
        group = state.groups.of(state.rank, name)
        if op in SUMS and group is not None and group.members == members:
            total += sums.get("bytes", 0)
    return total


def _thinning(duration_ns: int) -> int:
    """Return of how many steps one is kept: all of usual ones, of short ones so many that a window is covered.

    It is a power of two, so that ranks whose steps differ a little keep the same ones.
    """
    return 1 << max((KEPT_APART_NS // max(duration_ns, 1)).bit_length() - 1, 0)


def _add(state: RankState, name: str, sums: dict[str, int]) -> None:
    group = state.groups.of(state.rank, name)
    label = group.label if group else name
    if label not in state.spent and len(state.spent) >= GROUPS_KEPT:
        label = OTHERS
    total = state.spent.setdefault(label, {})
    for what, value in sums.items():
        total[what] = total.get(what, 0) + value


def _own_ns(state: RankState, step: events.Step, duration: int) -> int | None:
    """Return what of a step was spent outside operations, and begin to count anew."""
    end = step.end_ns or 0
    if state.held_since_ns is not None:
        _count_busy(state, state.held_since_ns, end)
    busy, state.busy_ns = state.busy_ns, 0
    issued = state.last_call.call if state.last_call else 0
    return max(duration - busy, 0) if issued >= (step.calls or 0) else None


def _take_phase(state: RankState, phase: events.Phase) -> None:
    state.last_ns = state.progress_ns = phase.time_ns
    state.started = True
    if phase.edge == "begin":
        state.phases[phase.number] = OpenPhase(phase.phase, phase.time_ns)
        if phase.address is not None:
            state.joining = phase
        return
    if state.joining is not None and state.joining.number == phase.number:
        state.joining = None
    begun = state.phases.pop(phase.number, None)
    if begun is not None:
        _note_length(state, begun.name, phase.time_ns - begun.begun_ns)
    if state.phase == phase.phase:
        state.phase = ""


def _take_batch(state: RankState, batch: events.Batch) -> None:
    state.last_ns = state.progress_ns = batch.time_ns
    state.started = True
    state.batch_since_ns = batch.time_ns if batch.edge == "begin" else None


def _take_memory(state: RankState, memory: events.Memory) -> None:
    if memory.device_bytes and memory.reserved_bytes is not None:
        _note_memory(state, memory.time_ns, memory.reserved_bytes, memory.device_bytes)
    elif memory.rss_bytes is not None:
        _note_memory(state, memory.time_ns, memory.rss_bytes, _host_limit(memory))


def _host_limit(memory: events.Memory) -> int | None:
    """Return up to what this process may grow: what it has, and what its cgroup and its host have left."""
    used = memory.rss_bytes or 0
    left = [memory.host_available_bytes] if memory.host_available_bytes is not None else []
    if memory.cgroup_bytes is not None and memory.cgroup_limit_bytes is not None:
        left.append(max(memory.cgroup_limit_bytes - memory.cgroup_bytes, 0))
    return used + min(left) if left else None


def _note_memory(state: RankState, now: int, used: int, limit: int | None) -> None:
    last = state.memory[-1] if state.memory else None
    if limit is None:
        if last is not None and last.limit_bytes is not None:
            return  # the process says no more than a sample with its limit did
    elif last is not None and last.limit_bytes is None:
        state.memory.clear()
        last = None
    if last is None or now - last.time_ns >= MEMORY_EVERY_NS:
        state.memory.append(MemorySample(now, used, limit))


def _take_numerics(state: RankState, numerics: events.Numerics) -> None:
    if numerics.loss is not None:
        state.facts["loss"] = numerics.loss
    state.groups.replicas.note(state.rank, numerics)


def _take_wrapper(state: RankState, wrapper: events.Wrapper) -> None:
    group = state.groups.of(state.rank, wrapper.group)
    if group is not None:
        state.groups.replicas.learn(state.rank, wrapper, group.members)


def _take_fault(state: RankState, fault: events.Fault) -> None:
    state.last_ns = max(state.last_ns, fault.time_ns)
    if fault.fault == "exit":
        state.ended = True
        if state.died is None and fault.code:
            state.died = fault
    elif fault.where == "uncaught" and fault.type not in ORDERLY:
        state.died = state.died or fault
    elif fault.fault in ("exception", "out-of-memory"):
        state.raised.append(fault)


def _take_stack(state: RankState, stack: events.Stack) -> None:
    state.stack = stack


def _take_path(state: RankState, path: events.Path) -> None:
    state.paths[path.path] = path.frames


def _take_signature(state: RankState, signature: events.Signature) -> None:
    if signature.signature in state.signatures:
        return  # each segment repeats it, behind a call that is counted already
    state.signatures[signature.signature] = signature
    for call in state.open_calls.values():
        if call.signature == signature.signature:  # the first call of a kind stands before it
            _count(state, call, signature)


def _take_group(state: RankState, group: events.Group) -> None:
    if state.groups.learn(state.rank, group):
        state.sequences.pop(group.group, None)


def _note_length(state: RankState, name: str, length_ns: int) -> None:
    state.longest_ns[name] = max(state.longest_ns.get(name, 0), length_ns)


_TAKERS: dict[type[events.Event], Callable[[RankState, Any], None]] = {
    events.Pulse: _take_pulse,
    events.Call: _take_call,
    events.Done: _take_done,
    events.Step: _take_step,
    events.Phase: _take_phase,
    events.Batch: _take_batch,
    events.Memory: _take_memory,
    events.Numerics: _take_numerics,
    events.Wrapper: _take_wrapper,
    events.Fault: _take_fault,
    events.Stack: _take_stack,
    events.Path: _take_path,
    events.Signature: _take_signature,
    events.Group: _take_group,
}
