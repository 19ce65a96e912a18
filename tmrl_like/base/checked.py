"""Small JSON files with a checksum, which detects damage on the disk."""

from __future__ import annotations

import zlib
from typing import TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)

_BEFORE = b',"crc32":"'


def checked_json(content: msgspec.Struct) -> bytes:
    """Encode a struct as a JSON object whose last member is the CRC-32 of everything before it."""
    text = msgspec.json.encode(content).removesuffix(b"}")
    return text + _BEFORE + _end(text)


def read_checked(data: bytes, kind: type[T]) -> T:
    """Decode what `checked_json` wrote; an object without a checksum, from an earlier version, is
    accepted, too.

    Raises:
        ValueError: the data is damaged, or is something else.
    """
    text, checksum_follows, end = data.rpartition(_BEFORE)
    try:
        if not checksum_follows:
            members = msgspec.json.decode(data)
            content = msgspec.convert(members, kind)
            if len(members) > len(kind.__struct_fields__):
                # one of them may be a checksum whose name is damaged
                raise ValueError("it has members that are not known")
            return content
        if end != _end(text):
            raise ValueError("its checksum does not match; if you edit it, remove the member crc32")
        return msgspec.json.decode(text + b"}", type=kind)
    except RecursionError as error:  # not a ValueError, as msgspec's are
        raise ValueError(str(error)) from None


def _end(text: bytes) -> bytes:
    return b'%08x"}' % zlib.crc32(text)
