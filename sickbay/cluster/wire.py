"""JSON as the API server sends it, read strictly. Pure."""

from __future__ import annotations

from typing import Any

import msgspec


def decode_json(data: bytes | bytearray | memoryview) -> Any:
    """Decode strict JSON in strict UTF-8; NaN, infinities and lone surrogates are no JSON.

    Raises ValueError, saying what is wrong, for anything else.
    """
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: {error.reason} at byte {error.start}") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
