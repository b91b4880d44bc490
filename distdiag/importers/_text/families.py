"""All kinds of lines that are understood, in one table."""

import re

from distdiag.importers._text import (
    detail,
    devices,
    dumps,
    exceptions,
    fragments,
    launchers,
    mpi,
    nccl,
    stores,
    torchrun,
    watchdog,
)
from distdiag.importers._text.kinds import BlockFamily, Family

FAMILIES: tuple[Family, ...] = (
    *watchdog.FAMILIES,
    *detail.FAMILIES,
    *stores.FAMILIES,
    *exceptions.FAMILIES,
    *torchrun.FAMILIES,
    *mpi.FAMILIES,
    *launchers.FAMILIES,
    *nccl.FAMILIES,
    *devices.FAMILIES,
)
"""Kinds of single lines."""

BLOCKS: tuple[BlockFamily, ...] = (
    *exceptions.BLOCKS,
    *dumps.BLOCKS,
    *watchdog.BLOCKS,
    *detail.BLOCKS,
    *mpi.BLOCKS,
    *torchrun.BLOCKS,
    *nccl.BLOCKS,
    *fragments.BLOCKS,
)
"""Kinds of messages of several lines."""

_NEEDLES = sorted(
    {needle for family in FAMILIES for needle in family.needles}
    | {needle for block in BLOCKS for needle in block.needles}
)
_LOGGERS = ("ProcessGroupNCCL", "ProcessGroupGloo", "ProcessGroupWrapper")
"""Whose lines may be broken within the words that tell their kind."""
INTERESTING = re.compile(b"|".join(re.escape(needle.encode()) for needle in (*_LOGGERS, *_NEEDLES)))
"""Lines without any of these words say nothing that is understood."""
