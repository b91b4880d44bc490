"""Where a rank was, and what it was busy with, while others waited for it."""

import statistics
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from distdiag.analyzers._wording import seconds
from distdiag.analyzers.investigation.caught import caught_by
from distdiag.analyzers.investigation.lives import CONNECTION, SECOND_NS, TIMEOUT, TORN_DOWN, End, Life
from distdiag.analyzers.investigation.paths import Frames, location
from distdiag.analyzers.investigation.rows import newest
from distdiag.analyzers.investigation.stores import unanswered_in
from distdiag.run import Run, user_frames
from distdiag.stackframes import activity_in

SILENCE_NS = 3 * SECOND_NS
"""Pulses come each second; a process that gave none for so long, and none after, was frozen or gone."""
BUSY_SHARE = 0.1
"""Of a processor. Waiting and giving signs of life takes 2 %; who computes may have to share its core."""
SHARED_BUSY_SHARE = 0.02
BUSIER = 5
"""On a crowded host less is enough, where it is so many times what the ranks that wait use."""
BACKGROUND = "checkpoint upload"
"""A phase of another thread than the training one: it says nothing of where the rank is."""
STOOD = "stood still in other code"
"""What is said of a rank that nothing says more of than where it is, and that it does not move or compute."""
HOLDERS = {
    "debugger": "stood in a debugger",
    "process": "waited for a process that it had started",
    "thread": "waited for a thread of its own",
    "network": "waited for the network",
}
"""What is said where its stack tells what it waits for."""
DESTROY = "destroy_process_group"
OWN_PHASES = frozenset({"init_process_group", "new_group", "split_group", DESTROY, "TCPStore", BACKGROUND})
"""Phases that recording itself makes around other calls and in the background; all others are what the rank does."""
WORDS_OF_CAUSES = (
    ("checkpoint", ("checkpoint", "save", "ckpt")),
    ("data-loading", ("data", "load", "token", "preprocess", "download")),
    ("compile", ("compile",)),
)
"""What the name that a user gave a phase says of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """The position of one rank at one moment."""

    rank: int
    cause: str
    """As ``rank-missing`` names it: data-loading, checkpoint, compile, other-collective, exited, running, frozen …"""
    doing: str
    """What a sentence says: ``has been in its data loader``."""
    frames: Frames
    since_ns: int
    step: int
    phase: str | None = None
    """The user's phase it was in."""
    detail: str | None = None
    """What compares this with how it was before."""
    told: bool = True
    """Whether anything tells where it was, and since when."""

    @property
    def site(self) -> str | None:
        """Return the ``file:line`` of the innermost user frame."""
        return location(self.frames[-1]) if self.frames else None


def whereabouts(run: Run, life: Life, since_ns: int, until_ns: int) -> Whereabouts:
    """Return where a rank was while others waited for it, from ``since_ns`` to ``until_ns``."""
    place = _Place(run, life, since_ns, until_ns)
    phase, batch = place.open_phase(), place.open_batch()
    looked_at = unanswered_in(run).get(life.rank)
    if looked_at is not None and not place.issued_any():
        return replace(place.at("unknown", f"found no store at {looked_at}", life.first_ns), told=False)
    gone = place.gone()
    if gone is not None:
        return gone
    quiet = life.end in (End.SILENT, End.RUNNING) and until_ns - life.last_ns > SILENCE_NS
    if quiet or (life.frozen and not place.gave_signs()):
        return place.frozen(life)
    if phase is not None:
        name = str(phase["phase"])
        cause = place.activity() or _cause_of(name)
        return place.at(cause, f'was in phase "{name}"', int(phase["time_ns"]), row=phase, phase=name)
    if batch is not None:
        detail = place.batches_before(batch)
        return place.at("data-loading", "was in its data loader", int(batch["time_ns"]), row=batch, detail=detail)
    activity = place.activity()
    if activity is not None:
        busy = place.at(activity, f"was busy with {activity.replace('-', ' ')}", place.last_call_ns())
        return replace(busy, told=life.end is not End.UNTOLD)  # a single look does not tell since when
    if place.in_other_call():
        return place.at("other-collective", "was in another collective", place.last_call_ns())
    if place.moves():
        return place.at("running", "was running other code", place.last_call_ns())
    if life.end is End.UNTOLD:
        return place.untold()
    holder = place.held_by()
    doing, cause = HOLDERS.get(holder, STOOD), holder if holder in HOLDERS else "unknown"
    return place.at(cause, doing, place.last_call_ns(), detail=place.dead_thread() or place.caught())


def _cause_of(phase: str) -> str:
    lowered = phase.lower()
    return next((cause for cause, words in WORDS_OF_CAUSES if any(word in lowered for word in words)), "running")


class _Place:
    """What the log of one rank says of a span of time."""

    def __init__(self, run: Run, life: Life, since_ns: int, until_ns: int) -> None:
        self._run, self._life = run, life
        self._since_ns, self._until_ns = since_ns, until_ns
        pulses = run.pulses[run.pulses["rank"] == life.rank]
        if life.end is not End.UNTOLD:  # who looked from outside may have copied what he saw: its age tells nothing
            pulses = pulses[pulses["time_ns"] <= until_ns]
        self._pulses = pulses.sort_values("time_ns")
        calls = run.calls[(run.calls["rank"] == life.rank) & (run.calls["start_ns"] <= until_ns)]
        self._last_call = newest(calls, "start_ns") if len(calls) else None

    def at(
        self,
        cause: str,
        doing: str,
        since_ns: int,
        *,
        row: "pd.Series[Any] | None" = None,
        phase: str | None = None,
        detail: str | None = None,
    ) -> Whereabouts:
        """Return the position, with the deepest user frames known."""
        return Whereabouts(
            rank=self._life.rank,
            cause=cause,
            doing=doing,
            frames=self._frames(row),
            since_ns=since_ns,
            step=self._step(),
            phase=phase,
            detail=detail,
        )

    def gone(self) -> Whereabouts | None:
        """Return that a rank had ended, or destroyed all its groups after its last call."""
        left = self._left_groups()
        ended = self._life.end in (End.ORDERLY, End.HARD_EXIT) and self._life.end_ns <= self._until_ns
        return self._exited(left) if ended else left

    def _left_groups(self) -> Whereabouts | None:
        phases = self._run.phases
        mine = phases[(phases["phase"] == DESTROY) & (phases["edge"] == "begin") & (phases["rank"] == self._life.rank)]
        mine = mine[mine["ranks"].isna() & mine["time_ns"].between(self.last_call_ns(), self._until_ns)]
        if mine.empty:
            return None
        row = newest(mine)
        place = self.at("exited", "had destroyed its process groups", int(row["time_ns"]))
        return place if pd.isna(row["path"]) else replace(place, frames=self._run.paths.get(int(row["path"]), ()))

    def _exited(self, left: Whereabouts | None) -> Whereabouts:
        faults = self._run.faults
        mine = faults[(faults["rank"] == self._life.rank) & (faults["fault"] == "exit")]
        told = "had been told to stop with SIGTERM and " if self._life.signal == TORN_DOWN else ""
        place = self.at("exited", f"{told}had already ended", self._life.end_ns, detail=self.caught())
        if mine.empty or not len(mine["frames"].iloc[-1]):
            return place if left is None else replace(left, detail=place.detail)
        code = mine["code"].iloc[-1]
        doing = "had been interrupted" if pd.isna(code) else f"had left by sys.exit({int(code)})"
        return replace(place, doing=told + doing, frames=tuple(mine["frames"].iloc[-1]))

    def caught(self) -> str | None:
        """Return what it had caught since its last call, and gone on."""
        found = caught_by(self._run, (self._life.rank,), self.last_call_ns(), self._until_ns)
        return None if found is None else found[1]

    def dead_thread(self) -> str | None:
        """Return which of its threads had died of an exception: it may wait for what that one was to bring."""
        faults = self._run.faults
        before = (faults["time_ns"] <= self._until_ns) & (faults["where"] == "thread")
        died = faults[(faults["rank"] == self._life.rank) & before]
        if died.empty:
            return None
        last = newest(died)
        site = location(last["frames"][-1]) if len(last["frames"]) else "an unknown line"
        message = str(last["message"]).strip().partition("\n")[0]
        return f"its thread {last['thread']} had died of {last['type']}: {message} ({site})"

    def frozen(self, life: Life) -> Whereabouts:
        """Return that a rank gave no sign of life."""
        frames = user_frames(life.frozen_frames)
        if frames:  # a call that holds the interpreter, such as reading or writing a file from native code
            busy = activity_in(life.frozen_frames)
            doing = "gave no sign of life" + (f", busy with {busy.replace('-', ' ')}" if busy else "")
            return replace(self.at(busy or "frozen", doing, life.last_ns), frames=frames)
        if life.end is not End.UNTOLD:
            return self.at("frozen", "gave no sign of life", life.last_ns)
        doing = "was held up on its host, so that not even the backend's own thread could run"
        return replace(self.at("frozen", doing, self._since_ns), told=False)

    def untold(self) -> Whereabouts:
        """Return what the others' errors tell of a rank whose own log would not."""
        said = [str(error) for error in self._run.calls["error"].dropna().unique()]
        gone = bool(said) and all(CONNECTION.search(error) and not TIMEOUT.search(error) for error in said)
        place = self.at("exited", "was gone: the connections to it broke", self._since_ns)
        if not gone:
            place = self.at("unknown", "was somewhere that nothing here tells", self._since_ns)
        if len(self._pulses) and place.frames:
            place = self.at("running", "stood in other code, by its stack", self._since_ns)
        return replace(place, told=False)

    def open_phase(self) -> "pd.Series[Any] | None":
        """Return the innermost phase of the user's that had begun and not ended."""
        phases = self._run.phases
        return self._open(phases[~phases["phase"].isin(OWN_PHASES)], ["number"])

    def open_batch(self) -> "pd.Series[Any] | None":
        """Return the batch that a data loader had been asked for and not given."""
        return self._open(self._run.batches, ["loader", "batch"])

    def _open(self, records: pd.DataFrame, identity: list[str]) -> "pd.Series[Any] | None":
        mine = records[(records["rank"] == self._life.rank) & (records["time_ns"] <= self._until_ns)]
        ended = mine[mine["edge"] == "end"].set_index(identity).index
        begun = mine[mine["edge"] == "begin"]
        still = begun[~begun.set_index(identity).index.isin(ended)]
        return newest(still) if len(still) else None

    def batches_before(self, batch: "pd.Series[Any]") -> str | None:
        """Return how long this loader took for the batches before one that does not come."""
        mine = self._run.batches[self._run.batches["rank"] == self._life.rank]
        mine = mine[(mine["loader"] == batch["loader"]) & (mine["batch"] < batch["batch"])]
        whole = self._took(batch)
        begun, ended = (mine[mine["edge"] == edge].set_index("batch")["time_ns"] for edge in ("begin", "end"))
        durations = (ended - begun).dropna()
        if durations.empty:
            return None
        return f"batch {int(batch['batch'])} {whole}; its earlier ones took {seconds(float(durations.median()))}"

    def _took(self, batch: "pd.Series[Any]") -> str:
        batches = self._run.batches
        same = (batches["rank"] == self._life.rank) & (batches["loader"] == batch["loader"])
        ends = batches[same & (batches["batch"] == batch["batch"]) & (batches["edge"] == "end")]["time_ns"]
        return f"took {seconds(int(ends.iloc[0]) - int(batch['time_ns']))}" if len(ends) else "does not come"

    def activity(self) -> str | None:
        """Return what the newest pulse says the main thread was doing."""
        return self._newest("activity") or None

    def held_by(self) -> str:
        """Return what the newest pulse says the main thread waited for; nothing where it does not tell."""
        return self._newest("held_by")

    def _newest(self, column: str) -> str:
        told_when = self._life.end is not End.UNTOLD  # stacks are as old as their files: one is not told from another
        if self._pulses.empty or (told_when and self._newest_pulse_ns() < self._since_ns):
            return ""
        told = self._pulses[column].iloc[-1]
        return told if isinstance(told, str) else ""

    def gave_signs(self) -> bool:
        """Return whether it gave signs of life until the end: what froze it once had passed."""
        return self._newest_pulse_ns() > self._until_ns - SILENCE_NS

    def moves(self) -> bool:
        """Return whether the main thread was seen at several places, or using the processor."""
        during = self._pulses[self._pulses["time_ns"] >= self._since_ns]
        share = _share(during)
        if share is not None and (share > BUSY_SHARE or (share > SHARED_BUSY_SHARE and self._is_busier(share))):
            return True
        return during["path"].dropna().nunique() > 1

    def _is_busier(self, share: float) -> bool:
        """Return whether a rank uses several times as much of its host as its peers do meanwhile."""
        pulses = self._run.pulses
        meanwhile = pulses[
            (pulses["rank"] != self._life.rank) & pulses["time_ns"].between(self._since_ns, self._until_ns)
        ]
        others = [
            each for _, rows in meanwhile.groupby("rank") if (each := _share(rows.sort_values("time_ns"))) is not None
        ]
        return bool(others) and share > BUSIER * statistics.median(others)

    def in_other_call(self) -> bool:
        """Return whether its last call had not ended."""
        call = self._last_call
        return call is not None and bool(pd.isna(call["end_ns"])) and not bool(call["p2p"])

    def issued_any(self) -> bool:
        """Return whether it had got as far as a call."""
        return self._last_call is not None

    def last_call_ns(self) -> int:
        """Return when it issued its last call, or began."""
        return int(self._last_call["start_ns"]) if self._last_call is not None else self._life.first_ns

    def _newest_pulse_ns(self) -> int:
        return int(self._pulses["time_ns"].iloc[-1]) if len(self._pulses) else 0

    def _frames(self, row: "pd.Series[Any] | None") -> Frames:
        begun_ns = int(row["time_ns"]) if row is not None else 0
        seen = self._pulses.dropna(subset=["path"])
        if len(seen) and int(seen["time_ns"].iloc[-1]) >= max(begun_ns, self.last_call_ns()):
            return self._run.paths.get(int(seen["path"].iloc[-1]), ())
        if row is not None and not pd.isna(row["path"]):
            return self._run.paths.get(int(row["path"]), ())
        return self._run.paths.get(int(self._last_call["path"]), ()) if self._last_call is not None else ()

    def _step(self) -> int:
        steps = [int(self._pulses["step"].iloc[-1])] if len(self._pulses) else []
        if self._last_call is not None:
            steps.append(int(self._last_call["step"]))
        return max(steps, default=0)


def _share(pulses: pd.DataFrame) -> float | None:
    """Return how much of a processor a rank used from the first of some pulses to the last."""
    known = pulses.dropna(subset=["cpu_ns"])
    if len(known) < 2:
        return None
    used, passed = (known[column].iloc[-1] - known[column].iloc[0] for column in ("cpu_ns", "time_ns"))
    return float(used / passed) if passed else None
