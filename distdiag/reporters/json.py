"""The report for machines: the versioned contract ``distdiag.report/1``.

The same report always gives the same bytes: fields stand in the order of their declaration, ranks and the
keys of free mappings are sorted. Lists are never null; what is not a finite number is null.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, TextIO

from distdiag.findings import Report, as_json


def render(report: Report, out: TextIO) -> None:
    """Write ``report`` as one JSON object."""
    content = as_json(report)
    for finding in (content["verdict"], *content["findings"]):
        for name in ("culprits", "victims"):
            finding[name] = sorted(finding[name])
        finding["sites"] = _sorted(finding["sites"])
    for name in ("performance", "data_quality"):
        content[name] = _sorted(content[name])
    out.write(json.dumps(_finite(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _sorted(value: Any) -> Any:
    """Order the keys of all mappings in ``value``: numbers by size, then words by letter."""
    if isinstance(value, Mapping):
        return {str(key): _sorted(value[key]) for key in sorted(value, key=_order)}
    if isinstance(value, (list, tuple)):
        return [_sorted(each) for each in value]
    return value


def _order(key: object) -> tuple[int, int, str]:
    text = str(key)
    return (0, int(text), "") if text.isdecimal() else (1, 0, text)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
