"""Merged stacks as lines: a run of frames that the same ranks are in is one line, a fork is an indentation."""

from collections.abc import Iterator, Sequence

from distdiag import wording
from distdiag.findings import StackBranch
from distdiag.reporters._lines import Line, Span, wrap

MAIN = "MainThread"
MOST_LINES = 24
"""More forks than that are no picture any more; JSON has them all."""
INDENT = 2
SEPARATOR = " > "


def stack_lines(branches: Sequence[StackBranch], width: int, most: int = MOST_LINES, label: str = "rank") -> list[Line]:
    """Return the lines of merged stacks, a heading for each thread; nothing where there are no stacks."""
    lines: list[Line] = []
    for thread in dict.fromkeys(branch.thread for branch in branches):
        name = "the main thread" if thread == MAIN else f"thread {thread}"
        lines.append((Span(f"Stacks of {name}", "bold"),))
        runs = list(_runs([branch for branch in branches if branch.thread == thread]))
        column = INDENT + max(len(wording.fold(run[0].ranks)) + INDENT * depth for depth, run in runs) + INDENT
        for depth, run in runs[:most]:
            lines += _run_lines(depth, run, column, width)
        if len(runs) > most:
            lines.append((Span(f"{' ' * INDENT}and {len(runs) - most} more places of {label}s", "dim"),))
    return lines


def _runs(branches: Sequence[StackBranch]) -> Iterator[tuple[int, list[StackBranch]]]:
    """Yield frames that lead to one another without a fork, and how many forks stand before them."""
    forks: list[int] = []
    """Depths at which a run began, of the runs that the present one lies in."""
    run: list[StackBranch] = []
    for branch in branches:
        follows = bool(run) and branch.depth == run[-1].depth + 1 and branch.ranks == run[-1].ranks
        if run and not follows:
            yield len(forks) - 1, run
            run = []
        if not run:
            while forks and forks[-1] >= branch.depth:
                forks.pop()
            forks.append(branch.depth)
        run.append(branch)
    if run:
        yield len(forks) - 1, run


def _run_lines(depth: int, run: Sequence[StackBranch], column: int, width: int) -> Iterator[Line]:
    ranks = " " * (INDENT + INDENT * depth) + wording.fold(run[0].ranks)
    text = SEPARATOR.join(map(_frame, run))
    first, *rest = wrap(text, width - column)
    yield (Span(f"{ranks:<{column}}"), Span(first))
    for line in rest:
        yield (Span(" " * (column + INDENT)), Span(line))


def _frame(branch: StackBranch) -> str:
    lines = ",".join(map(str, branch.lines[:3])) + ("…" if len(branch.lines) > 3 else "")
    name = wording.basename(branch.file)
    return f"{branch.function} ({name}:{lines})" if any(branch.lines) else f"{branch.function} ({name})"
