"""JSON that every parser accepts: no NaN, no bare Infinity. Pure."""

import json
import math
from typing import Any

import msgspec

JsonObject = dict[str, Any]
"""A decoded JSON or YAML object from outside, not yet validated."""


def plain(value: object) -> Any:
    """Structs as dictionaries; an unlimited rate becomes the text `inf`, which a scenario reads back."""
    return _without_infinity(msgspec.to_builtins(value, str_keys=True))


def to_json(value: object) -> str:
    """The same as JSON text.

    Raises:
        ValueError: it holds a NaN, which is a bug.
    """
    return json.dumps(plain(value), allow_nan=False)


def _without_infinity(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_infinity(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_infinity(item) for item in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value
