"""Settings for all tests: distdiag's own errors are raised, and what shares costly work is run by one process."""

import gc
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from distdiag.errors import RAISE_OWN_ERRORS

os.environ[RAISE_OWN_ERRORS] = "1"
gc.set_threshold(20_000, 10, 10)  # looking for cycles in what analyses make took an eighth of the time
ROOT = Path(__file__).parents[1]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out tests one by one, those that share costly work together; larger bundles come first."""
    from xdist.scheduler import LoadScopeScheduling

    if config.getoption("dist") != "load":
        return None
    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = bundle_of
    return scheduler


def bundle_of(test: str) -> str:
    """Return the name of the bundle that a test belongs to."""
    return bundle_of_file(test.partition("::")[0]) or test


@cache
def bundle_of_file(file: str) -> str | None:
    """Return what the tests of a file belong to, or None where each stands alone.

    All fault programs are one bundle: they mostly wait, and more of them at a time would make ranks late by chance.
    """
    text = (ROOT / file).read_text()
    if "from tests.faults.runs import" in text:
        return "fault programs"
    return file if 'scope="module"' in text else None
