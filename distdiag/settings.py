"""What can be set about recording: by argument of ``install()`` first, by environment variable otherwise."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from distdiag.errors import DistdiagError

OFF_WORDS = frozenset({"off", "0", "no", "false", "disabled"})
DEFAULT_DIRECTORY = "distdiag_logs"
DEFAULT_STALL_AFTER_SECONDS = 60.0
DEFAULT_MAX_BYTES = 256 << 20
DEFAULT_PULSE_SECONDS = 1.0
DEFAULT_CHECKSUM_EVERY = 100
LOGGED_PREFIXES = ("NCCL_", "TORCH_", "GLOO_", "PYTORCH_", "DISTDIAG", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "API_KEY")

RANK_VARIABLE = "RANK"
"""What launchers of ranks set, and people who start ranks by hand; the others tell the number of a scheduler's task."""
RANK_VARIABLES = (RANK_VARIABLE, "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
WORLD_SIZE_VARIABLES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
LOCAL_RANK_VARIABLES = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
ATTEMPT_VARIABLES = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How this process records."""

    directory: Path
    stall_after_seconds: float = DEFAULT_STALL_AFTER_SECONDS
    max_bytes: int = DEFAULT_MAX_BYTES
    pulse_seconds: float = DEFAULT_PULSE_SECONDS
    native_stacks: bool = True
    """Whether a stalled process may start py-spy on itself."""
    numerics: bool = True
    """Whether losses, norms, loss scales and checksums are recorded."""
    name_modules: bool = False
    """Whether modules are watched from the start for the first output that is not finite, and not only after one."""
    checksum_every: int = DEFAULT_CHECKSUM_EVERY
    """Steps between two checksums of the parameters, beside those of the first steps; 0 for none at all."""


def is_off(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether ``DISTDIAG`` switches the whole tool off."""
    return environ.get("DISTDIAG", "").strip().lower() in OFF_WORDS


def resolve(
    directory: str | os.PathLike[str] | None = None,
    *,
    stall_after: float | None = None,
    max_bytes: int | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Settings:
    """Return the settings in force; raise ``DistdiagError`` for a variable that is not a number."""
    return Settings(
        directory=Path(directory or environ.get("DISTDIAG_DIR") or DEFAULT_DIRECTORY).absolute(),
        stall_after_seconds=stall_after
        if stall_after is not None
        else _number(environ, "DISTDIAG_STALL_AFTER", DEFAULT_STALL_AFTER_SECONDS),
        max_bytes=max_bytes
        if max_bytes is not None
        else int(_number(environ, "DISTDIAG_MAX_BYTES", DEFAULT_MAX_BYTES)),
        pulse_seconds=_number(environ, "DISTDIAG_PULSE_SECONDS", DEFAULT_PULSE_SECONDS),
        native_stacks=_is_on(environ, "DISTDIAG_NATIVE_STACKS"),
        numerics=_is_on(environ, "DISTDIAG_NUMERICS"),
        name_modules=environ.get("DISTDIAG_NUMERICS", "").strip().lower() == "modules",
        checksum_every=int(_number(environ, "DISTDIAG_CHECKSUM_EVERY", DEFAULT_CHECKSUM_EVERY))
        if _is_on(environ, "DISTDIAG_CHECKSUM_EVERY")
        else 0,
    )


def _is_on(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "on").strip().lower() not in OFF_WORDS


def _number(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError as error:
        raise DistdiagError(f"{name}={text!r} is not a number", f"unset it, or use e.g. {name}={default:g}") from error
    if not 0 < value < float("inf"):
        raise DistdiagError(f"{name}={text!r} is not a positive number", f"unset it, or use e.g. {name}={default:g}")
    return value


def whole_number(names: tuple[str, ...], environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the first of the variables that holds a whole number, as launchers set them."""
    for name in names:
        text = environ.get(name, "")
        if text.isdecimal():
            return int(text)
    return None


def run_name(environ: Mapping[str, str] = os.environ) -> str:
    """Return a name that all ranks of one launch share, as far as the launcher's variables tell."""
    job = environ.get("TORCHELASTIC_RUN_ID", "")
    if job in ("", "none"):
        job = environ.get("SLURM_JOB_ID", "")
    address = ":".join(environ[name] for name in ("MASTER_ADDR", "MASTER_PORT") if name in environ)
    return "@".join(part for part in (job, address) if part) or f"{socket.gethostname()}-{os.getpid()}"


def logged_settings(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that help a diagnosis; nothing that looks like a secret."""
    return {
        name: value[:200]
        for name, value in sorted(environ.items())
        if (name.startswith(LOGGED_PREFIXES) or name in ATTEMPT_VARIABLES)
        and not any(word in name for word in SECRET_WORDS)
    }
