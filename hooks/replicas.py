"""Watches data-parallel wrappers: checksums of their replicas, and gradients that no peer was asked for.

Just before an optimizer's step the parameters of a replica are what the last step and every broadcast after it left:
there they have to be equal on all ranks of the wrapper's group, bit for bit. Shards have to be on the ranks that hold
the same ones, where there are such.
"""

import time
import weakref
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from distdiag import events
from distdiag.errors import guard
from distdiag.hooks._by_hand import ByHand, Optimizers, wrapper_of
from distdiag.hooks._checksums import Checks, block_size, checked, rng_digests
from distdiag.hooks._patch import Undo, observe, together, when_imported
from distdiag.hooks._wrapped import Replica, are_apart_on_purpose, parameters_of
from distdiag.hooks.groups import learn_group
from distdiag.recorder import GroupState, Recorder

FIRST_STEPS = 4
"""Steps that are always checked: most replicas that go apart do so at once. Then every power of two, until the regular
checks begin: what goes wrong early is not found late."""
SHARED_BY = {"fully_shard": "shard", events.HYBRID: "replicate"}
STATES = "parameters with a state"
FORCED = 4
"""Checks beside the regular ones, in steps after one whose gradients stayed apart."""
LARGEST_SENTINEL = 1 << 14
"""Numbers in the gradient that is looked at in each backward."""


def install(recorder: Recorder) -> Undo:
    """Watch DDP's and FSDP's wrappers, unless the settings say not to."""
    if not recorder.settings.numerics:
        return lambda: None
    replicas = Replicas(recorder)
    return together(
        [
            replicas.close,
            when_imported("torch.nn.parallel.distributed", lambda module: _watch_replicas(replicas, module)),
            when_imported("torch.optim.optimizer", lambda module: _watch_optimizers(replicas, module)),
            when_imported(
                "torch.distributed.fsdp.fully_sharded_data_parallel",
                lambda module: observe(module.FullyShardedDataParallel, "__init__", _Sharded(replicas)),
            ),
            when_imported(
                "torch.distributed.fsdp._fully_shard._fsdp_param_group",
                lambda module: observe(module.FSDPParamGroup, "__init__", _Sharded(replicas)),
            ),
        ]
    )


def _watch_replicas(replicas: "Replicas", module: ModuleType) -> Undo:
    owner = module.DistributedDataParallel
    return together([observe(owner, "__init__", _Made(replicas)), observe(owner, "forward", _Forward(replicas))])


def _watch_optimizers(replicas: "Replicas", module: ModuleType) -> Undo:
    def before(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        with guard("look at the replicas"):
            replicas.before_step(optimizer)

    return module.register_optimizer_step_pre_hook(before).remove  # type: ignore[no-any-return]


class Replicas:
    """The wrappers of this process; hooks tell it of them."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._known: weakref.WeakKeyDictionary[Any, Replica] = weakref.WeakKeyDictionary()
        self._numbers = 0
        self._sharded_groups: dict[str, int] = {}
        self._hybrid: dict[int, list[weakref.ref[Any]]] = {}
        """Units whose shards other ranks hold as well, by the number of their group's wrapper."""
        self._optimizers = Optimizers(recorder=recorder)
        self._by_hand: set[tuple[int, str]] = set()
        """Numbers and groups of replicas without a wrapper that were written of."""
        self._checks = Checks(recorder)
        self._rng_step = -1

    def of(self, wrapper: Any) -> Replica | None:
        """Return what is known of a wrapper; None if it is alone."""
        known = self._known.get(wrapper)
        if known is None:
            known = self._known[wrapper] = self._begin(wrapper)
        return known if len(known.group.ranks) > 1 else None

    def _begin(self, wrapper: Any) -> Replica:
        from torch.distributed import distributed_c10d

        self._numbers += 1
        group = learn_group(self.recorder, distributed_c10d, wrapper.process_group)
        replica = Replica(self._numbers, wrapper, group)
        names = [name for name, _ in parameters_of(wrapper)]
        self._write_wrapper(
            type(wrapper).__name__,
            group,
            module=type(wrapper.module).__name__,
            parameters=names[:: block_size(len(names))],
            size_bytes=sum(p.numel() * p.element_size() for p in wrapper.parameters() if p.requires_grad),
        )
        replica.collectives = replica.collectives_among(self.recorder.groups)
        self.recorder.numerics.modules.know(wrapper.module)
        replica.handles = self._sentinels(wrapper)
        return replica

    def sharded(self, wrapper: Any) -> None:
        """Note the groups of a wrapper that shards: its ranks compute the same model on different samples."""
        from torch.distributed import distributed_c10d

        mesh = getattr(wrapper, "mesh_info", None)
        groups = {name: getattr(mesh, f"{kind}_process_group", None) for name, kind in SHARED_BY.items()}
        if mesh is None:
            groups = {type(wrapper).__name__: getattr(wrapper, "process_group", None)}
            groups[events.HYBRID] = getattr(wrapper, "_inter_node_pg", None)
        for name, group in groups.items():
            if group is None:
                continue
            if group.group_name not in self._sharded_groups:
                self._numbers += 1
                self._sharded_groups[group.group_name] = self._numbers
                self._write_wrapper(name, learn_group(self.recorder, distributed_c10d, group))
            if name == events.HYBRID and group.size() > 1:
                self._hybrid.setdefault(self._sharded_groups[group.group_name], []).append(weakref.ref(wrapper))

    def _write_wrapper(self, name: str, group: GroupState, **facts: Any) -> None:
        self.recorder.write(
            events.Wrapper(
                wrapper=self._numbers,
                name=name,
                group=group.event.group,
                time_ns=time.monotonic_ns(),
                step=self.recorder.step,
                **facts,
            )
        )

    def _sentinels(self, wrapper: Any) -> list[Any]:
        """Watch one small gradient of the first layers, which holds what any later layer did wrong.

        It is looked at before peers' are added to it, after which nobody can tell whose they were.
        """
        numerics = self.recorder.numerics
        trained = [p for p in wrapper.parameters() if p.requires_grad]
        first = [p for p in trained[: max(2, len(trained) // 4)] if p.numel() <= LARGEST_SENTINEL]

        def look(parameter: Any) -> None:
            with guard("look at a gradient"):
                gradient = parameter.grad
                if gradient is not None and not gradient.is_sparse and gradient.is_floating_point():
                    numerics.see_gradient(gradient)

        return [p.register_post_accumulate_grad_hook(look) for p in first[:1]]

    def close(self) -> None:
        """Take the hooks off the parameters."""
        for replica in list(self._known.values()):
            for handle in replica.handles:
                handle.remove()

    def before_step(self, optimizer: Any) -> None:
        """Look at the replicas that an optimizer is about to change."""
        recorder = self.recorder
        self._checks.collect()
        if recorder.step != self._rng_step and self._is_due(recorder.step):
            self._rng_step = recorder.step
            recorder.numerics.note(rng=rng_digests(), optimizer=_numbers_of(optimizer))
            self._check_shards()
        replicas = list(self._known.values())
        if self._is_due(recorder.step):
            self._check_unwrapped(optimizer, replicas)
        for replica in replicas:
            wrapper = replica.wrapper()
            if wrapper is None or len(replica.group.ranks) < 2 or replica.checked_step == recorder.step:
                continue
            if not replica.is_trained_by(optimizer):
                continue
            replica.checked_step = recorder.step
            collectives = replica.collectives_among(recorder.groups)
            reason = replica.why_apart(collectives) if recorder.backwards else None
            due = replica.force_next or self._is_due(recorder.step)
            if (reason is not None or due) and not are_apart_on_purpose(wrapper):
                replica.force_next = False
                if reason is not None and any(p.grad is not None for p in wrapper.parameters()):
                    self._note_unsynchronised(replica, reason)
                if due:
                    self._checks.begin(replica.number, parameters_of(wrapper))
            replica.forwards = 0
            replica.collectives = collectives

    def _is_due(self, step: int) -> bool:
        every = self.recorder.settings.checksum_every
        doubled = 2 * FIRST_STEPS <= step < every and not step & (step - 1)
        return every > 0 and (step < FIRST_STEPS or doubled or step % every == 0)

    def _note_unsynchronised(self, replica: Replica, reason: str) -> None:
        """Write that the gradients at hand are this rank's alone."""
        if replica.forced < FORCED:
            replica.forced += 1
            replica.force_next = True
        self.recorder.write(
            events.Numerics(
                step=self.recorder.step, time_ns=time.monotonic_ns(), wrapper=replica.number, unsynchronised=reason
            )
        )

    def _check_unwrapped(self, optimizer: Any, replicas: Sequence[Replica]) -> None:
        """Check what an optimizer changes beside wrapped replicas, or where there are none."""
        trained = [each for each in replicas if each.is_trained_by(optimizer)]
        if trained:
            identities = (each.identities for each in replicas)
            known = self._optimizers.beside(optimizer, identities, trained[0].group)
        else:
            known = self._optimizers.averaged_by_hand(optimizer)
        if known is None or len(known.group.ranks) < 2:
            return
        self._tell_once(known)
        gradients = [each.grad for each in known.parameters] if known.name == events.BY_HAND else []
        self._checks.begin(known.number, checked(enumerate([*known.parameters, *gradients]), ()), len(gradients))

    def _check_shards(self) -> None:
        """Check the shards that other ranks hold as well: nothing but equal beginnings keeps them equal."""
        for number, units in self._hybrid.items():
            held = [shard for unit in (each() for each in units) if unit is not None for shard in _shards_of(unit)]
            self._checks.begin(number, checked(enumerate(held), ()))

    def _tell_once(self, known: ByHand) -> None:
        key = known.number, known.group.event.group
        if key not in self._by_hand:
            self._by_hand.add(key)
            names = known.names()[:: block_size(len(known.parameters))]
            step, now = self.recorder.step, time.monotonic_ns()
            self.recorder.write(wrapper_of(known, time_ns=now, step=step, names=names))


def _numbers_of(optimizer: Any) -> dict[str, float]:
    """Return what of an optimizer has to be the same on all ranks, as far as no device has to be asked."""
    numbers = {name: float(value) for name, value in optimizer.param_groups[0].items() if type(value) in (int, float)}
    return {**numbers, STATES: float(len(optimizer.state))}


def _shards_of(unit: Any) -> list[Any]:
    """Return the shards of an FSDP unit, either version's, whose gradients it averages with those who hold the same."""
    if not getattr(unit, "all_reduce_grads", getattr(unit, "_sync_gradients", False)):
        return []
    shards = [getattr(each, "_sharded_param_data", None) for each in getattr(unit, "fsdp_params", ())]
    flat = getattr(getattr(unit, "_handle", None), "flat_param", None)
    return [each for each in (*shards, getattr(flat, "_local_shard", None)) if each is not None]


class _Made:
    """Learns of a wrapper when it is made."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return weakref.ref(args[0])

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        wrapper = token() if token is not None else None
        if wrapper is not None and error is None:
            self._replicas.of(wrapper)


class _Sharded(_Made):
    """Learns of a wrapper that shards when it is made."""

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        wrapper = token() if token is not None else None
        if wrapper is not None and error is None:
            self._replicas.sharded(wrapper)


class _Forward:
    """Sees whether a forward arranges for gradients to be averaged, and what the model is called with."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        import torch

        replica = self._replicas.of(args[0])
        if replica is not None and torch.is_grad_enabled():
            replica.forwards += 1
            replica.synchronised = args[0].require_backward_grad_sync
        self._replicas.recorder.numerics.called_with((*args[1:], *kwargs.values()), has_replica=True)

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        """Nothing to do: only the begin counts."""
