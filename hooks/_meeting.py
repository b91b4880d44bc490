"""Where a process means to meet the others, and as whom: what ``init_process_group`` is told and what it looks up."""

import os
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

MAX_ADDRESS = 300
"""Characters; paths of files can be long."""
PLACES = {
    "backend": 0,
    "init_method": 1,
    "world_size": 3,
    "rank": 4,
    "store": 5,
}
"""Positions of the arguments of ``init_process_group``."""
STORE_PLACES = {"host_name": 0, "port": 1, "world_size": 2}
"""Positions of the arguments of ``TCPStore``."""


def meeting_of(
    args: Sequence[Any], kwargs: Mapping[str, Any], environ: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """Return ``address``, ``port``, ``as_rank``, ``world_size`` and ``backend`` of a call, those that are told.

    An address is a host, the path of a file, or the name of a store that lies in neither.
    """
    told = {name: kwargs.get(name, args[place] if len(args) > place else None) for name, place in PLACES.items()}
    store, url = told["store"], told["init_method"] or "env://"
    found = _of_url(url, environ) if store is None else _of_store(store)
    for name, given in (("as_rank", told["rank"]), ("world_size", told["world_size"])):
        number = _number(given)
        if number is not None and number >= 0:  # -1 leaves it to the address
            found[name] = number
    found["backend"] = None if told["backend"] is None else str(told["backend"])[:MAX_ADDRESS]
    return {name: value for name, value in found.items() if value is not None}


def meeting_of_store(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``address``, ``port`` and ``world_size`` of the making of a ``TCPStore``, those that are told."""
    host, port, size = (
        kwargs.get(name, args[place] if len(args) > place else None) for name, place in STORE_PLACES.items()
    )
    found = {"address": _short(host), "port": _number(port), "world_size": _number(size)}
    return {name: value for name, value in found.items() if value is not None}


def _of_store(store: Any) -> dict[str, Any]:
    while (inner := getattr(store, "underlying_store", None)) is not None:
        store = inner
    host, port, path = (getattr(store, name, None) for name in ("host", "port", "path"))
    return {"address": _short(host or path or type(store).__name__), "port": _number(port)}


def _of_url(url: str, environ: Mapping[str, str]) -> dict[str, Any]:
    parts = urlsplit(url)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    found = {"as_rank": _number(query.get("rank")), "world_size": _number(query.get("world_size"))}
    if parts.scheme == "env":
        return {
            "address": _short(environ.get("MASTER_ADDR")),
            "port": _number(environ.get("MASTER_PORT")),
            "as_rank": _number(query.get("rank", environ.get("RANK"))),
            "world_size": _number(query.get("world_size", environ.get("WORLD_SIZE"))),
        }
    if parts.scheme == "tcp":
        return {**found, "address": _short(parts.hostname), "port": parts.port}
    return {**found, "address": _short(parts.path or url)}


def _short(text: Any) -> str | None:
    return None if text is None else str(text)[:MAX_ADDRESS]


def _number(value: Any) -> int | None:
    try:
        return None if value is None or isinstance(value, bool) else int(value)
    except (TypeError, ValueError):
        return None
