"""Renders what the verification or the trial loading of a checkpoint brought, as lines for people."""

from collections.abc import Sequence

from distdiag.checkpoints import CODES, WHOLE, Facts, Trial, Verification
from distdiag.reporters import words
from distdiag.reporters._lines import BLANK, Line, Span, hang, hang_all, wrap

LABEL = 15
MOST_PROBLEMS = 12
_UNITS = ("bytes", "KB", "MB", "GB", "TB")
_KINDS = {"sharded": ("shard", "shards"), "per-rank": ("file of a rank", "files of ranks")}


def verification_lines(found: Verification, width: int) -> list[Line]:
    """Return the lines of a verification: what is wrong first, then what to do, then what was looked at."""
    if found.outcome == WHOLE:
        return _whole(found, width)
    first, *others = sorted(found.problems, key=lambda each: each.finding != found.outcome)
    lines = _headline("DAMAGED", "bold red", first.summary, f"{CODES[first.finding]} {first.finding}", width)
    shown = [each.summary for each in others[:MOST_PROBLEMS]]
    if len(others) > len(shown):
        shown.append(f"and {len(others) - len(shown)} more: --format json has them all")
    lines += _block("Also", shown, width)
    lines += _block("Do next", found.action, width, numbered=True)
    lines += _block("Looked at", [f"{found.directory}: {_facts(found.facts)}"], width)
    return lines + _rest(found, width)


def trial_lines(directory: str, trials: Sequence[Trial], width: int) -> list[Line]:
    """Return the lines of a drill: at which sizes it loads, and whether the values are those that were saved."""
    failed = [each for each in trials if each.error]
    if failed:
        summary = f"at {_ranks(failed[0].world_size)} it does not load: {failed[0].error}"
        lines = _headline("DOES NOT LOAD", "bold red", summary, "", width)
    else:
        sizes = ", ".join(str(each.world_size) for each in trials)
        basis = "the hashes of the save" if trials[0].basis == "save" else "the checksums in its own files"
        summary = (
            f"{directory} loads at {sizes} ranks: {trials[0].tensors} tensors, and all {trials[0].chunks} chunks equal "
            f"{basis}"
        )
        lines = _headline("LOADS", "bold green", summary, "", width)
    rows = [
        f"{_ranks(each.world_size)}: {each.error or _measured(each)}" for each in trials if each.error or each.seconds
    ]
    return lines + _block("Trials", rows, width)


def _measured(trial: Trial) -> str:
    left = f"; not loaded: {', '.join(trial.left_out)}" if trial.left_out else ""
    return (
        f"loaded in {words.duration(trial.seconds)}, peak memory of a rank {size(trial.peak_bytes)}, "
        f"{size(trial.grown_bytes)} of it for the load{left}"
    )


def _ranks(world_size: int) -> str:
    return f"{world_size} rank{'s' if world_size > 1 else ''}"


def _whole(found: Verification, width: int) -> list[Line]:
    read = "" if found.facts.contents_read else " by names and sizes; its contents were not read"
    lines = _headline("WHOLE", "bold green", f"{found.directory} is whole{read}: {_facts(found.facts)}", "", width)
    lines += _block("Loads", [found.loads] if found.loads else [], width)
    return lines + _rest(found, width)


def _rest(found: Verification, width: int) -> list[Line]:
    lines = _block("Worth a look", found.notes, width)
    unknown = f"the save left no hashes; without them these look whole: {'; '.join(found.unknowable)}"
    return lines + _block("Not known here", [unknown] if found.unknowable else [], width)


def _headline(word: str, style: str, summary: str, label: str, width: int) -> list[Line]:
    room = width - len(word) - 2
    lines = hang(f"{word}  ", wrap(summary, room), style=style)
    if label:
        lines.append((Span(" " * (len(word) + 2)), Span(label, "dim")))
    return lines


def _block(label: str, texts: Sequence[str], width: int, *, numbered: bool = False) -> list[Line]:
    lines = hang_all(label, texts, indent=LABEL, width=width, numbered=numbered)
    return [BLANK, *lines] if lines else []


def _facts(facts: Facts) -> str:
    one, many = _KINDS.get(facts.kind, ("file", "files"))
    parts = [f"{facts.files} {one if facts.files == 1 else many}, {size(facts.bytes)}"]
    if facts.tensors:
        chunks = f" in {facts.chunks} chunks" if facts.chunks > facts.tensors else ""
        parts.append(f"{facts.tensors} tensor{'s' if facts.tensors > 1 else ''}{chunks}")
    if facts.values:
        parts.append(f"{facts.values} other values")
    if facts.world_size is not None:
        parts.append(f"saved by {_ranks(facts.world_size)}" + ("" if facts.step is None else f" at step {facts.step}"))
    if facts.hashed != "none" and facts.contents_read:
        parts.append("compared with the save's hashes" + (" in part" if facts.hashed == "some" else ""))
    return ", ".join(parts)


def size(count: float) -> str:
    """Write a number of bytes in the unit that a person would choose."""
    number, unit = float(count), 0
    while number >= 1000 and unit < len(_UNITS) - 1:
        number, unit = number / 1000, unit + 1
    return f"{number:.3g} {_UNITS[unit]}" if unit else f"{int(number)} bytes"
