"""``distdiag pack``: a run as Parquet, which any engine reads."""

from pathlib import Path

import click

from distdiag.commands import _options


@click.command("pack", short_help="Write a run as Parquet, a fraction of the size, for any engine.")
@_options.logs_argument
@click.option(
    "-o", "--output", type=click.Path(file_okay=False, path_type=Path), required=True, metavar="DIR",
    help="A new folder.",
)  # fmt: skip
def command(logs: Path, output: Path) -> int:
    """Write a run as partitioned Parquet: a table for each kind of record, the ranks in ranges.

    ``distdiag analyze DIR`` says the same of it as of the logs; DuckDB, Spark, pandas and others read
    DIR/kind=call/*/*.parquet and its neighbours. What other tools measured (traces, tables of operations) stays out.
    """
    from distdiag.importers import pack  # pandas and duckdb: not for --help

    packed, left_out = pack(logs, output)
    for note in left_out:
        click.echo(f"note: {note}", err=True)
    before, after = packed.read_bytes / 1e6, packed.written_bytes / 1e6
    click.echo(f"{output}: {packed.files} logs of {packed.ranks} ranks, {before:,.1f} MB in {after:,.1f} MB")
    return 0
