"""CRC-32C, the checksum that Spark keeps beside its files (reflected polynomial 0x82F63B78).

Python's own libraries do not have it, and byte by byte it is slow. But checksums of this sort are linear: a large
content is cut into lanes of equal length, which are summed side by side in one array, and then joined two by two, the
left one of a pair moved on by the length of the right one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_POLYNOMIAL = 0x82F63B78
_ONES = 0xFFFFFFFF
_LANE_BYTES_LOG2 = 8
_LANE_BYTES = 1 << _LANE_BYTES_LOG2
_SMALL_BYTES_MAX = 16 * 1024  # up to here the plain loop is faster

Sums = npt.NDArray[np.uint32]
Operator = Sums  # what becomes of each of the 32 bits of a sum


def crc32c(content: bytes) -> int:
    """The checksum of these bytes."""
    return _small(content) if len(content) <= _SMALL_BYTES_MAX else _large(content)


def _small(content: bytes) -> int:
    total = _ONES
    for byte in content:
        total = (total >> 8) ^ _TABLE_LIST[(total ^ byte) & 0xFF]
    return total ^ _ONES


def _large(content: bytes) -> int:
    lanes = 1 << ((len(content) - 1) // _LANE_BYTES).bit_length()
    padded = np.zeros(lanes * _LANE_BYTES, np.uint8)
    begin = len(padded) - len(content)  # zeros in front change nothing in a sum that begins with 0
    padded[begin:] = np.frombuffer(content, np.uint8)
    padded[begin : begin + 4] ^= 0xFF  # the same as to begin with ones
    return int(_joined(_lane_sums(padded.reshape(lanes, _LANE_BYTES)))) ^ _ONES


def _lane_sums(lanes: npt.NDArray[np.uint8]) -> Sums:
    sums = np.zeros(len(lanes), np.uint32)
    for column in lanes.T:
        sums = (sums >> 8) ^ _TABLE[(sums ^ column) & 0xFF]
    return sums


def _joined(sums: Sums) -> np.uint32:
    operator = _OVER_A_LANE
    while len(sums) > 1:
        sums = _moved(sums[::2], operator) ^ sums[1::2]
        operator = _moved(operator, operator)
    return np.uint32(sums[0])


def _moved(sums: Sums, operator: Operator) -> Sums:
    """The sums after as many zeros as the operator stands for."""
    moved = np.zeros(len(sums), np.uint32)
    for bit in range(32):
        moved ^= np.where(sums >> bit & 1, operator[bit], np.uint32(0))
    return moved


def _table() -> Sums:
    sums: Sums = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        sums = (sums >> np.uint32(1)) ^ (sums & np.uint32(1)) * np.uint32(_POLYNOMIAL)
    return sums


def _over_a_lane() -> Operator:
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    operator: Operator = (bits >> 8) ^ _TABLE[bits & 0xFF]  # over one zero byte
    for _ in range(_LANE_BYTES_LOG2):
        operator = _moved(operator, operator)
    return operator


_TABLE = _table()
_TABLE_LIST: list[int] = _TABLE.tolist()
_OVER_A_LANE = _over_a_lane()
