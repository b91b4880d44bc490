"""Watches the wrappers that make a model distributed: root forwards, and the unit that a collective works for."""

import threading
import time
from types import ModuleType
from typing import Any

from distdiag import events
from distdiag.hooks._patch import Undo, observe, together, when_imported
from distdiag.recorder import Recorder

UNIT_METHODS = ("unshard", "wait_for_unshard", "post_backward", "finalize_backward")


def install(recorder: Recorder) -> Undo:
    """Count root forwards of DDP, FSDP and pipeline schedules, and name FSDP's units."""
    root = _Root(recorder)
    watched = {
        "torch.nn.parallel.distributed": lambda module: observe(module.DistributedDataParallel, "forward", root),
        "torch.distributed.fsdp.fully_sharded_data_parallel": lambda module: observe(
            module.FullyShardedDataParallel, "forward", root
        ),
        "torch.distributed.fsdp._flat_param": lambda module: _flat_parameters(recorder, module),
        "torch.distributed.fsdp._runtime_utils": lambda module: _flat_gradients(recorder, module),
        "torch.distributed.fsdp._fully_shard._fsdp_state": lambda module: observe(
            module.FSDPState, "_pre_forward", _ShardedRoot(recorder)
        ),
        "torch.distributed.fsdp._fully_shard._fsdp_param_group": lambda module: _units(recorder, module),
        "torch.distributed.pipelining.schedules": lambda module: _schedules(recorder, root, module),
    }
    return together([when_imported(name, watch) for name, watch in watched.items()])


def _units(recorder: Recorder, module: ModuleType) -> Undo:
    observer = _Unit(recorder)
    owner = module.FSDPParamGroup
    return together([observe(owner, name, observer) for name in UNIT_METHODS if hasattr(owner, name)])


def _flat_parameters(recorder: Recorder, module: ModuleType) -> Undo:
    return observe(module.FlatParamHandle, "unshard", _FlatUnit(recorder))


def _flat_gradients(recorder: Recorder, module: ModuleType) -> Undo:
    if not hasattr(module, "_reduce_grad"):
        return lambda: None
    return observe(module, "_reduce_grad", _FlatUnit(recorder, argument=1))


def _schedules(recorder: Recorder, root: "_Root", module: ModuleType) -> Undo:
    owners = [module.PipelineScheduleSingle, module.PipelineScheduleMulti]
    told = _Schedule(recorder)
    return together(
        [observe(owner, "step", each) for owner in owners if "step" in vars(owner) for each in (root, told)]
    )


class _Schedule:
    """Tells which schedule runs, each once: messages alone do not tell those that split backwards from others."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._told: set[tuple[str, int, int]] = set()

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        running = args[0]
        stages = getattr(running, "_stages", None)
        kind = type(running).__name__, int(running._n_microbatches), 1 if stages is None else len(stages)
        if kind in self._told:
            return
        self._told.add(kind)
        value = dict(zip(("schedule", "microbatches", "stages"), kind, strict=True))
        recorder = self._recorder
        recorder.write(
            events.Decision(name=events.PIPELINE_SCHEDULE, value=value, time_ns=time.monotonic_ns(), step=recorder.step)
        )

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        """Nothing to do: that it runs is told at its beginning."""


class _Root:
    """Counts a forward that is not part of another one."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._depth = 0

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if threading.get_ident() != self._recorder.main_thread:
            return False
        self._depth += 1
        if self._depth == 1:
            self._recorder.loop.begin_forward()
        return True

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        if token:
            self._depth -= 1


class _ShardedRoot:
    """Counts forwards of ``fully_shard`` roots: their state knows that it is the root once it has begun."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        state = args[0]
        # Recomputed activations run forwards inside the backward.
        nested = state._state_ctx.iter_forward_root is not None or state._training_state.name == "PRE_BACKWARD"
        if not nested and threading.get_ident() == self._recorder.main_thread:
            self._recorder.loop.begin_forward()
            if self._recorder.numerics is not None:
                self._recorder.numerics.called_with((*args[2], *args[3].values()), has_replica=False)

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        """Nothing to do: only the begin counts."""


class _Unit:
    """Names the FSDP unit on whose behalf this thread issues collectives."""

    def __init__(self, recorder: Recorder, *, argument: int = 0) -> None:
        self._modules = recorder.modules
        self._argument = argument

    def name(self, unit: Any) -> str | None:
        """Return the unit's name in the model."""
        return unit._module_fqn or None

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, str | None]:
        thread = threading.get_ident()
        outer = self._modules.get(thread)
        self._modules[thread] = self.name(args[self._argument]) or "root"
        return thread, outer

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        if token is None:
            return
        thread, outer = token
        if outer is None:
            self._modules.pop(thread, None)
        else:
            self._modules[thread] = outer


class _FlatUnit(_Unit):
    def name(self, unit: Any) -> str | None:
        """Return the first parameter of an FSDP1 unit, which is all that the unit knows of its name."""
        names = getattr(getattr(unit, "flat_param", None), "_fqns", None)
        return str(names[0]) if names else None
