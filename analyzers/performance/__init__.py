"""Where the time of the steps goes: the ledger, the waiting in collectives and its sources, computed once per run."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pandas as pd

from distdiag.analyzers.performance.alignment import Alignment, align
from distdiag.analyzers.performance.columns import Tables
from distdiag.analyzers.performance.ledger import batches_of, held_in, ledger_of, pauses_of
from distdiag.analyzers.performance.rollups import MANY_CALLS, calls_per_step, rolled_waits, spread
from distdiag.analyzers.performance.tables import clocks_in, steps_in_logs, tables_of
from distdiag.analyzers.performance.waits import passed_on, waits_of
from distdiag.run import Run

if TYPE_CHECKING:
    import ibis

NO_STEPS = "no whole training step was recorded; steps end with an optimizer's step, or with distdiag.step()"
DEVICE_TIMES = "the host runs ahead of the device the ranks compute on, and these logs hold no device times"

NOISE = 0.002
"""Of a step: shorter waits are not followed to their source. Where single calls are looked at, a hundred of them at
most, all of such waits are less than a fifth of the step."""
DEVICE_SHARE = 0.9
"""Of the calls on devices, for the few without a device time not to matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a run's calls and steps say of its time; all times in nanoseconds."""

    ledger: pd.DataFrame
    """A row per rank and step after the warm-up, as ``ledger_of`` says."""
    ranks: pd.DataFrame
    """By rank: caused_ns (what others waited for it), came_last (collectives), of_collectives."""
    groups: pd.DataFrame
    """By group and op: group_key, group, op, members, calls, bytes, exposed_ns, waiting_ns, transfer_ns (median of
    one collective)."""
    alignment: Alignment
    unknown: Mapping[str, str]
    """What these logs do not tell, with the reason."""
    newest: bool
    """Only the newest steps were looked at."""
    waits: ibis.Table | None = None
    """The calls behind it, as ``waits_of`` returns them, of the steps in the ledger; None where nothing was measured.
    """
    kinds: pd.DataFrame = field(default_factory=pd.DataFrame)
    """By the code in ``waits``: what the calls of one kind have in common."""
    rolled: bool = False
    """A row of ``waits`` stands for all calls of one step, rank, group and op."""


_measured: weakref.WeakKeyDictionary[Run, dict[bool, Measured]] = weakref.WeakKeyDictionary()
"""Several analyzers and the summary ask; the answers live as long as their run."""


def measure(run: Run, *, whole: bool = False) -> Measured:
    """Return where a run's time goes, from its frames or from the ``whole`` logs where these hold more."""
    whole = whole and run.quality.window_bytes is not None
    known = _measured.setdefault(run, {})
    if whole not in known:
        known[whole] = _measure(run, whole=whole)
    return known[whole]


def _measure(run: Run, *, whole: bool) -> Measured:
    unknown = {} if _tells_device_times(run) else {"shares": DEVICE_TIMES}
    newest = run.quality.window_bytes is not None and not whole
    if not whole and not run.steps["end_ns"].notna().any():
        return _nothing({**unknown, "steps": NO_STEPS}, newest=newest)
    rolled = whole and calls_per_step(run) >= MANY_CALLS
    steps, waits, kinds, alignment = _from_sums(run) if rolled else _from_calls(run, whole=whole)
    held = spread(held_in(waits), steps) if rolled else held_in(waits)
    ledger = ledger_of(run.engine, steps, held, pauses_of(run, whole=whole), batches_of(run, whole=whole))
    if ledger.empty:
        return _nothing({**unknown, "steps": NO_STEPS}, newest=newest)
    first = ledger.groupby("rank")["step"].min().rename("first").reset_index()
    waits = waits.join(run.engine.memory(first), "rank")
    waits = waits.filter(waits.step >= waits.first).drop("first")
    return Measured(
        ledger=ledger,
        ranks=_ranks(run, waits, ledger, rolled=rolled),
        groups=_groups(run, waits, kinds),
        alignment=alignment,
        unknown=unknown,
        newest=newest,
        waits=waits,
        kinds=kinds,
        rolled=rolled,
    )


def _from_calls(run: Run, *, whole: bool) -> tuple[ibis.Table, ibis.Table, pd.DataFrame, Alignment]:
    """Return steps, waits, kinds and alignment from every single call."""
    tables = tables_of(run, whole=whole)
    alignment = align(run.engine, tables.calls, clocks_in(run))
    steps = _with_all_calls(tables)
    calls = alignment.applied(run.engine, tables.calls)
    waits = run.engine.materialised(waits_of(run.engine, calls, steps, comparable=alignment.comparable))
    return steps, waits.mutate(calls=1), tables.kinds, alignment


def _from_sums(run: Run) -> tuple[ibis.Table, ibis.Table, pd.DataFrame, Alignment]:
    """Return the same from the sums that steps keep; clocks are not needed."""
    steps = run.engine.materialised(steps_in_logs(run))
    waits, kinds = rolled_waits(run, steps)
    error = 0 if len(set(clocks_in(run).values())) < 2 else None
    alignment = Alignment(offsets_ns={}, drifts={}, origin_ns=0, error_ns=error)
    return steps, run.engine.materialised(waits), kinds, alignment


def _tells_device_times(run: Run) -> bool:
    on_device = (run.calls["device"] != "cpu").to_numpy()
    if not on_device.any():
        return True
    ended = on_device & run.calls["end_ns"].notna().to_numpy()
    timed = run.calls["arrive_ns"].notna().to_numpy() & run.calls["duration_ns"].notna().to_numpy()
    return bool(ended.any() and timed[ended].mean() > DEVICE_SHARE)


def _with_all_calls(tables: Tables) -> ibis.Table:
    """Return the steps whose calls are known: where the first calls are lost, the first step has lost some too."""
    first = tables.first_calls
    lost = first.filter(first.call > 1).select("rank", lost=first.step)
    steps = tables.steps.left_join(lost, "rank").drop("rank_right")
    return steps.filter(steps.lost.isnull() | (steps.step > steps.lost)).drop("lost")


def _nothing(unknown: Mapping[str, str], *, newest: bool) -> Measured:
    return Measured(
        ledger=pd.DataFrame(),
        ranks=pd.DataFrame(),
        groups=pd.DataFrame(),
        alignment=Alignment(offsets_ns={}, drifts={}, origin_ns=0, error_ns=None),
        unknown=unknown,
        newest=newest,
    )


def _ranks(run: Run, waits: ibis.Table, ledger: pd.DataFrame, *, rolled: bool) -> pd.DataFrame:
    """Return what each rank made others wait, in the steps of the ledger."""
    counted = waits.filter(waits.members > 1)
    per_rank = counted.group_by(counted.last_rank.name("rank")).agg(
        caused_ns=counted.waiting_ns.sum(), came_last=(counted["rank"] == counted.last_rank).sum()
    )
    caused = run.engine.frame(per_rank).set_index("rank")
    total = run.engine.frame(counted.group_by("rank").agg(of_collectives=counted.count())).set_index("rank")
    several = run.engine.frame(counted.aggregate(groups=counted.group.nunique()))["groups"].iloc[0]
    every = pd.DataFrame(index=pd.Index(sorted(set(ledger["rank"])), name="rank"))
    every = every.join(caused).join(total).fillna(0).astype("int64")
    if several > 1 and not rolled:  # sums of a step hold no order
        moved = passed_on(run.engine, counted, NOISE * float(ledger["step_ns"].median()))
        for rank, sign in (("last", -1), ("source", 1)):
            every["caused_ns"] = every["caused_ns"].add(sign * moved.groupby(rank)["waiting_ns"].sum(), fill_value=0)
    return every.astype("int64")


def _groups(run: Run, waits: ibis.Table, kinds: pd.DataFrame) -> pd.DataFrame:
    """Return what the calls of each kind took."""
    per_kind = waits.group_by("kind").agg(
        calls=waits.calls.sum(),
        exposed_ns=waits.exposed_ns.sum(),
        waiting_ns=waits.waiting_ns.sum(),
        transfer_ns=waits.transfer_ns.median(),
    )
    found = run.engine.frame(per_kind).set_index("kind").join(kinds, how="inner")
    return found.sort_index().reset_index(drop=True)
