"""``distdiag demo``: let a small real run go wrong, and analyse it."""

import click


@click.command("demo")
def command() -> None:
    """Let a small real run go wrong, and analyse it."""
