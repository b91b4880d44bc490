"""``distdiag help``: a page per task."""

import difflib
import shutil
from importlib import resources

import click

from distdiag.errors import DistdiagError

WIDEST = 100


@click.command("help", short_help="Read a page: hangs, slow, memory, checkpoints, live, fleet, scale, privacy, cost.")
@click.argument("topic", required=False, metavar="[TOPIC]")
def command(topic: str | None) -> None:
    """Read the page on a task, or list the pages."""
    click.echo(contents() if topic is None else page(topic))


def topics() -> dict[str, str]:
    """Return the text of each page by its name."""
    folder = resources.files("distdiag") / "docs"
    return {
        each.name.removesuffix(".md"): each.read_text(encoding="utf-8")
        for each in sorted(folder.iterdir(), key=lambda each: each.name)
        if each.name.endswith(".md")
    }


def contents() -> str:
    """Return the list of pages, each with its heading."""
    pages = topics()
    width = max(map(len, pages))
    return "\n".join(f"{name:{width}}  {text.split(chr(10), 1)[0].lstrip('# ')}" for name, text in pages.items())


def page(topic: str) -> str:
    """Return a page for the terminal."""
    pages = topics()
    wanted = topic.strip().lower()
    if wanted not in pages:
        near = difflib.get_close_matches(wanted, pages, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(pages)}"
        raise DistdiagError(f"no page called {topic}", hint)
    if shutil.get_terminal_size((WIDEST, 0)).columns < WIDEST:
        return pages[wanted].replace("`", "")
    return pages[wanted].rstrip()
