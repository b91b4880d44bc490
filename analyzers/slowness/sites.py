"""Lines of code behind slowness: where a rank was seen at work, and where the others wait for it."""

from collections.abc import Collection
from dataclasses import dataclass

from distdiag.analyzers.investigation.paths import location
from distdiag.run import Run

ENOUGH_LOOKS = 2
"""Signs of life that hit a rank at work; of fewer one line says nothing."""
MOST_OF_THEM = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A line at which a rank was found at work."""

    site: str
    """``file:line``."""
    times: int
    looks: int


def seen_at_work(run: Run, rank: int, *, from_step: int) -> Seen | None:
    """Return the line at which a rank was most often when it waited for nobody; None where no line stands out."""
    pulses = run.pulses[(run.pulses["rank"] == rank) & (run.pulses["step"] >= from_step) & run.pulses["path"].notna()]
    pulses = pulses[pulses["waiting"].map(len).astype(int) == 0]
    lines = [location(frames[-1]) for frames in (run.paths.get(int(path), ()) for path in pulses["path"]) if frames]
    if len(lines) < ENOUGH_LOOKS:
        return None
    site = max(sorted(set(lines)), key=lines.count)
    times = lines.count(site)
    stands_out = times >= max(ENOUGH_LOOKS, MOST_OF_THEM * len(lines))
    return Seen(site=site, times=times, looks=len(lines)) if stands_out else None


def waiting_at(run: Run, victims: Collection[int], *, from_step: int) -> tuple[str, str] | None:
    """Return op and ``file:line`` of the calls in which some ranks spent most time."""
    calls = run.calls
    rows = calls[calls["rank"].isin(list(victims)) & calls["end_ns"].notna() & (calls["step"] >= from_step)]
    if rows.empty:
        return None
    spent = (rows["end_ns"] - rows["start_ns"]).astype("float64").groupby([rows["path"], rows["op"].astype(str)]).sum()
    path, op = max(spent.index.tolist(), key=lambda key: (spent[key], key))
    frames = run.paths.get(int(path), ())
    return (str(op), location(frames[-1])) if frames else None


def site_of_batches(run: Run) -> str | None:
    """Return the line that asks for batches."""
    asked = run.batches.loc[run.batches["path"].notna(), "path"]
    frames = run.paths.get(int(asked.mode().iloc[0]), ()) if len(asked) else ()
    return location(frames[-1]) if frames else None
