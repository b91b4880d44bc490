"""Settings for all tests: distdiag's own errors are raised, here and in the processes that tests start."""

import os

from distdiag.errors import RAISE_OWN_ERRORS

os.environ[RAISE_OWN_ERRORS] = "1"
