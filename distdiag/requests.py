"""What somebody asks of running ranks: files in the directory of their logs, no port and no collective."""

import os
import time
from pathlib import Path
from typing import Literal

import msgspec

FOLDER = Path(".distdiag", "requests")
"""In the directory of logs; hidden, so that nobody takes it for one."""
KEEP_SECONDS = 3600.0
"""After that a request is removed by whoever makes the next one."""
ENDING = ".json"
ANSWER = "distdiag ctl"
"""Name of the decision by which a rank's log says that it has done so; its value is the request's name."""


class Request(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One request."""

    ask: Literal["stacks", "detail", "numerics"]
    ranks: list[int] | None = None
    """None for all."""
    level: Literal["down", "normal", "up"] = "normal"
    """For ``detail``: how often ranks show where they are."""
    steps: int = 0
    """For ``numerics``: for how many steps the outputs of all modules are looked at."""

    @property
    def name(self) -> str:
        """Return what a rank's log says when it has done so."""
        what = {"detail": f"detail {self.level}", "numerics": f"numerics {self.steps}"}
        return what.get(self.ask, self.ask)


def post(logs: Path, request: Request) -> str:
    """Write a request into a directory of logs and return its name; raises ``OSError`` where that is not possible."""
    folder = logs / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    _tidy(folder)
    name = f"{time.time_ns():020d}-{os.getpid()}"
    hidden = folder / f".{name}"
    hidden.write_bytes(msgspec.json.encode(request))
    os.replace(hidden, folder / (name + ENDING))  # whoever reads finds it whole
    return name


def names(logs: Path) -> set[str]:
    """Return the requests in a directory of logs; none where it cannot be read."""
    try:
        found = os.listdir(logs / FOLDER)
    except OSError:
        return set()
    return {name.removesuffix(ENDING) for name in found if name.endswith(ENDING) and not name.startswith(".")}


def read(logs: Path, name: str) -> Request | None:
    """Return a request; None where it is gone, or of a kind that this version does not know."""
    try:
        return msgspec.json.decode((logs / FOLDER / (name + ENDING)).read_bytes(), type=Request)
    except (OSError, msgspec.MsgspecError):
        return None


def _tidy(folder: Path) -> None:
    for path in folder.iterdir():
        moment = path.name.lstrip(".").partition("-")[0]
        if moment.isdecimal() and time.time() - int(moment) / 1e9 > KEEP_SECONDS:
            path.unlink(missing_ok=True)
