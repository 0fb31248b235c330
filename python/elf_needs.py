"""Reads from an ELF file which version of glibc it needs."""

from __future__ import annotations

import re
import struct

_SHT_GNU_VERNEED = 0x6FFFFFFE
_WEAK = 2


def needed_glibc(path: str) -> tuple[int, int]:
    """Returns the highest version of glibc that a 64-bit ELF file needs, such as (2, 34).

    A version that is only needed weakly does not count: the loader accepts its absence.
    """
    with open(path, "rb") as file:
        data = file.read()
    highest = (2, 0)
    for section in _sections(data):
        if section["type"] == _SHT_GNU_VERNEED:
            for name in _strong_versions(data, section):
                match = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", name)
                if match:
                    highest = max(highest, (int(match[1]), int(match[2])))
    return highest


def _sections(data: bytes) -> list[dict[str, int]]:
    if data[:5] != b"\x7fELF\x02":
        raise ValueError("this is no 64-bit ELF file")
    offset, = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = []
    for index in range(count):
        fields = struct.unpack_from("<IIQQQQIIQQ", data, offset + index * size)
        names = ("name", "type", "flags", "address", "offset", "size", "link", "info")
        sections.append(dict(zip(names, fields)))
    for section in sections:
        linked = section["link"]
        section["strings"] = sections[linked]["offset"] if linked < count else 0
    return sections


def _strong_versions(data: bytes, section: dict[str, int]) -> list[str]:
    """Returns the names of the versions in a section of needed versions."""
    names = []
    entry = section["offset"]
    for _ in range(section["info"]):
        count, = struct.unpack_from("<H", data, entry + 2)
        first, following = struct.unpack_from("<II", data, entry + 8)
        version = entry + first
        for _ in range(count):
            flags, = struct.unpack_from("<H", data, version + 4)
            name, next_version = struct.unpack_from("<II", data, version + 8)
            if not flags & _WEAK:
                start = section["strings"] + name
                names.append(data[start : data.index(b"\0", start)].decode("ascii"))
            version += next_version
        entry += following
    return names
