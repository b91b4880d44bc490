"""Watches process groups being made, joined and destroyed: each of these can hang by itself."""

import os
import time
from collections.abc import Iterable
from datetime import timedelta
from types import ModuleType
from typing import Any

from distdiag import events
from distdiag.hooks._meeting import meeting_of, meeting_of_store
from distdiag.hooks._patch import Undo, observe, replace, together, when_imported
from distdiag.recorder import GroupState, Recorder

WHOLE_WORLD = "init_process_group"
STORE = "TCPStore"
MANY_RANKS = 16
"""Members of larger groups are written in short: of a world of thousands each rank writes them all."""


def install(recorder: Recorder) -> Undo:
    """Record ``init_process_group``, ``new_group``, ``split_group``, ``destroy_process_group`` and coalescing."""
    return together(
        [
            when_imported("torch.distributed.distributed_c10d", lambda module: _install(recorder, module)),
            when_imported("torch.distributed", lambda module: _rebind(module)),
            when_imported("torch.distributed.device_mesh", lambda module: _rebind(module)),
        ]
    )


def _install(recorder: Recorder, c10d: ModuleType) -> Undo:
    init = _Init(recorder, c10d)
    undos = [
        observe(c10d, "init_process_group", init),
        *_own_stores(recorder, init),
        observe(c10d, "_new_group_with_tag", _NewGroup(recorder, c10d)),
        observe(c10d, "destroy_process_group", _Destroy(recorder, c10d)),
        observe(c10d.ProcessGroup, "_start_coalescing", _StartCoalescing(recorder)),
        observe(c10d.ProcessGroup, "_end_coalescing", _EndCoalescing(recorder)),
    ]
    if hasattr(c10d, "split_group"):
        undos.append(observe(c10d, "split_group", _SplitGroup(recorder, c10d)))
    if c10d.is_initialized():
        for group in list(c10d._world.pg_map):
            learn_group(recorder, c10d, group)
    return together(undos)


def _own_stores(recorder: Recorder, init: "_Init") -> list[Undo]:
    from torch._C import _distributed_c10d as native

    store = getattr(native, "TCPStore", None)
    return [] if store is None else [observe(store, "__init__", _Store(recorder, init))]


def _rebind(module: ModuleType) -> Undo:
    """Let a module that imported the functions by name use the observed ones."""
    from torch.distributed import distributed_c10d as c10d

    undos = []
    for name in ("init_process_group", "destroy_process_group", "split_group"):
        observed = getattr(c10d, name, None)
        if hasattr(module, name) and observed is not None and getattr(module, name) is not observed:
            undos.append(replace(module, name, observed))
    return together(undos)


def learn_group(recorder: Recorder, c10d: ModuleType, group: Any) -> GroupState:
    """Return what is known of a group, writing its record at first sight."""
    state = recorder.groups.get(group)
    if state is not None:
        return state
    if group is c10d.GroupMember.WORLD:  # it may have been made before anybody watched
        recorder.learn_rank(group.rank(), group.size())
    members = c10d._world.pg_group_ranks.get(group)
    event = events.Group(
        group=group.group_name,
        description=group.group_desc or "",
        ranks=_in_short(members or range(group.size())),
        backend=group.name(),
        timeout_seconds=_timeout_seconds(group),
        sequence=_sequence(group),
        time_ns=time.monotonic_ns(),
    )
    state = recorder.groups[group] = GroupState(event)
    state.segment = recorder.journal.segment
    recorder.write(event)
    recorder.adopt_group(group, state)
    return state


def _in_short(ranks: Iterable[int]) -> list[int] | str:
    members = list(ranks)
    return members if len(members) < MANY_RANKS else events.folded(members)


def _sequence(group: Any) -> int:
    try:
        return int(group._get_sequence_number_for_group())
    except RuntimeError:  # some backends do not count
        return 0


def _timeout_seconds(group: Any) -> float | None:
    """Return the timeout that the backend uses, which need not be the one that was asked for."""
    for device in group._device_types:
        try:
            timeout = group._get_backend(device).options._timeout
        except (AttributeError, RuntimeError):
            continue
        return float(timeout.total_seconds())
    return None


def _forget(recorder: Recorder, state: GroupState) -> None:
    """Keep nothing of a group that is about to be destroyed: a Work holds its transport open."""
    for key, flight in list(recorder.flights.items()):
        if flight.signature.event.group == state.event.group:
            recorder.flights.pop(key, None)


class _Phases:
    """Writes a phase around a call."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        """End the phase."""
        if token is not None:
            self._recorder.end_phase(token, failed=error is not None)


class _Init(_Phases):
    def __init__(self, recorder: Recorder, c10d: ModuleType) -> None:
        super().__init__(recorder)
        self._c10d = c10d
        self.inside = False

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> events.Phase:
        self.inside = True
        if os.getpid() != self._recorder.pid:
            self._recorder = self._recorder.begin_again() or self._recorder
        timeout = kwargs.get("timeout", args[2] if len(args) > 2 else None)
        meeting = meeting_of(args, kwargs)
        if "as_rank" in meeting and "world_size" in meeting:
            # A log that has no rank yet would be nobody's if the ranks did not meet.
            self._recorder.learn_rank(meeting["as_rank"], meeting["world_size"], joined=False)
        return self._recorder.begin_phase(WHOLE_WORLD, timeout_seconds=_seconds(timeout), **meeting)

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        self.inside = False
        default = self._c10d.GroupMember.WORLD
        if default is not None and error is None:
            learn_group(self._recorder, self._c10d, default)
        super().after(token, result, error)


class _Store(_Phases):
    """A store that the script makes itself: it waits for the others as the making of a group does."""

    def __init__(self, recorder: Recorder, init: _Init) -> None:
        super().__init__(recorder)
        self._init = init

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> events.Phase | None:
        if self._init.inside:
            return None  # that phase tells it
        return self._recorder.begin_phase(STORE, **meeting_of_store(args[1:], kwargs))


class _NewGroup(_Phases):
    def __init__(self, recorder: Recorder, c10d: ModuleType) -> None:
        super().__init__(recorder)
        self._c10d = c10d
        self._asked = 0

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> events.Phase:
        ranks = kwargs.get("ranks", args[0] if args else None)
        timeout = kwargs.get("timeout", args[1] if len(args) > 1 else None)
        default = self._c10d.GroupMember.WORLD
        local = bool(kwargs.get("use_local_synchronization", args[5] if len(args) > 5 else False))
        begun = self._recorder.begin_phase(
            "new_group",
            index=None if local else self._asked,
            ranks=[int(rank) for rank in ranks] if ranks is not None else list(range(default.size() if default else 0)),
            timeout_seconds=_seconds(timeout),
            local=local,
        )
        self._asked += not local
        return begun

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        if result is not None and result is not self._c10d.GroupMember.NON_GROUP_MEMBER:
            learn_group(self._recorder, self._c10d, result)
        super().after(token, result, error)


class _SplitGroup(_NewGroup):
    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> events.Phase:
        return self._recorder.begin_phase("split_group", timeout_seconds=_seconds(kwargs.get("timeout")))


class _Destroy(_Phases):
    def __init__(self, recorder: Recorder, c10d: ModuleType) -> None:
        super().__init__(recorder)
        self._c10d = c10d

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> events.Phase:
        group, world = kwargs.get("group", args[0] if args else None), self._c10d.GroupMember.WORLD
        whole = group is None or group is world
        begun = self._recorder.begin_phase("destroy_process_group", ranks=None if whole else [])
        self._recorder.poll()
        for known, state in list(self._recorder.groups.items()):
            if whole or known is group:
                _forget(self._recorder, state)
                del self._recorder.groups[known]
        return begun


class _StartCoalescing:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._batches = 0

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._batches += 1
        self._recorder.coalescing[args[0]] = self._batches

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        """Nothing to do: the batch is open now."""


class _EndCoalescing:
    """Ends a coalesced batch: its members share the one Work that comes out here."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._recorder.coalescing.pop(args[0], None)

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        """Nothing to do: the members were recorded when they were issued."""


def _seconds(timeout: Any) -> float | None:
    return timeout.total_seconds() if isinstance(timeout, timedelta) else None
