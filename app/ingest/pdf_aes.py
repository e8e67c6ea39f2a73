"""AES for pypdf, which otherwise needs another library. Many PDF files are encrypted although they
open without a password.

Decryption works on all blocks at once with NumPy. Encryption, in which each block depends on the
one before, is only needed for the short texts from which keys are derived.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pypdf import _encryption
from pypdf._crypt_providers import CryptBase

BLOCK = 16
_Bytes = NDArray[np.uint8]


def install() -> None:
    """Install this module's cipher in pypdf."""
    for name in ("CryptAES", "aes_cbc_decrypt", "aes_cbc_encrypt", "aes_ecb_decrypt"):
        setattr(_encryption, name, globals()[name])


def _double(value: int) -> int:
    """Multiply by 2 in AES's field of 256 elements."""
    return (value << 1) ^ (0x11B if value & 0x80 else 0)


def _times(factor: int) -> list[int]:
    """All 256 elements, multiplied by `factor`."""
    products = []
    for value in range(256):
        product = 0
        for bit in range(4):
            if factor >> bit & 1:
                product ^= value
            value = _double(value)
        products.append(product)
    return products


def _substitutions() -> list[int]:
    """The S-box: the inverse of each element, then an affine map."""
    powers, value = [], 1
    for _ in range(255):
        powers.append(value)
        value ^= _double(value)
    inverse = {powers[i]: powers[-i % 255] for i in range(255)} | {0: 0}
    box = []
    for element in range(256):
        bits = inverse[element]
        rotated = [(bits << n | bits >> (8 - n)) & 0xFF for n in range(5)]
        box.append(0x63 ^ rotated[0] ^ rotated[1] ^ rotated[2] ^ rotated[3] ^ rotated[4])
    return box


_BOX = _substitutions()
_INVERSE_BOX = np.argsort(_BOX).astype(np.uint8)
_TWICE, _THRICE = _times(2), _times(3)
# Contribution of each byte of a column to the next column, in 32 bits: S-box and column mix in one.
_MIX = [(_TWICE[s] << 24) | (s << 16) | (s << 8) | _THRICE[s] for s in _BOX]
_MIXES = [[(m >> 8 * n | m << (32 - 8 * n)) & 0xFFFFFFFF for m in _MIX] for n in range(4)]
_UNMIX = [np.array(_times(factor), np.uint8) for factor in (14, 11, 13, 9)]
# Source of each byte of a block when the row shift is undone.
_UNSHIFT = np.array([(i - 4 * (i % 4)) % 16 for i in range(16)])


def _round_keys(key: bytes) -> list[int]:
    """The expanded key, in 32-bit words."""
    if len(key) not in (16, 24, 32):
        raise ValueError("an AES key has 16, 24 or 32 bytes")
    count = len(key) // 4
    words, constant = [*struct.unpack(f">{count}I", key)], 1
    for i in range(count, 4 * (count + 7)):
        word = words[-1]
        if i % count == 0:
            word = _substitute(word << 8 & 0xFFFFFFFF | word >> 24) ^ (constant << 24)
            constant = _double(constant)
        elif count > 6 and i % count == 4:
            word = _substitute(word)
        words.append(words[i - count] ^ word)
    return words


def _substitute(word: int) -> int:
    return int.from_bytes(bytes(_BOX[byte] for byte in word.to_bytes(4, "big")), "big")


def _encrypt_block(words: Sequence[int], keys: Sequence[int]) -> tuple[int, ...]:
    """Encrypt a block. `words` are its four columns."""
    m0, m1, m2, m3 = _MIXES
    a, b, c, d = (word ^ key for word, key in zip(words, keys, strict=False))
    for at in range(4, len(keys) - 4, 4):
        a, b, c, d = (
            m0[a >> 24] ^ m1[b >> 16 & 255] ^ m2[c >> 8 & 255] ^ m3[d & 255] ^ keys[at],
            m0[b >> 24] ^ m1[c >> 16 & 255] ^ m2[d >> 8 & 255] ^ m3[a & 255] ^ keys[at + 1],
            m0[c >> 24] ^ m1[d >> 16 & 255] ^ m2[a >> 8 & 255] ^ m3[b & 255] ^ keys[at + 2],
            m0[d >> 24] ^ m1[a >> 16 & 255] ^ m2[b >> 8 & 255] ^ m3[c & 255] ^ keys[at + 3],
        )
    shifted = ((a, b, c, d), (b, c, d, a), (c, d, a, b), (d, a, b, c))
    return tuple(
        _substitute(w & 0xFF000000 | x & 0xFF0000 | y & 0xFF00 | z & 0xFF) ^ key
        for (w, x, y, z), key in zip(shifted, keys[-4:], strict=True)
    )


def aes_cbc_encrypt(key: bytes, iv: bytes, data: bytes) -> bytes:
    """Encrypt in CBC mode. `data` must consist of whole blocks, as in all functions here."""
    keys, before = _round_keys(key), struct.unpack(">4I", iv)
    out = bytearray()
    for block in struct.iter_unpack(">4I", data):
        mixed = [word ^ earlier for word, earlier in zip(block, before, strict=True)]
        before = _encrypt_block(mixed, keys)
        out += struct.pack(">4I", *before)
    return bytes(out)


def _decrypt_blocks(key: bytes, data: bytes) -> _Bytes:
    """Decrypt each block independently. Returns an array (blocks, 16)."""
    words = np.array(_round_keys(key), ">u4")
    keys = words.view(np.uint8).reshape(-1, BLOCK)[::-1]
    state = np.frombuffer(data, np.uint8).reshape(-1, BLOCK) ^ keys[0]
    for round_key in keys[1:-1]:
        state = _unmixed(_INVERSE_BOX[state[:, _UNSHIFT]] ^ round_key)
    return np.asarray(_INVERSE_BOX[state[:, _UNSHIFT]] ^ keys[-1], np.uint8)


def _unmixed(state: _Bytes) -> _Bytes:
    """Multiply each column by the inverse of the mixing matrix."""
    columns = state.reshape(-1, 4, 4)
    out = np.zeros_like(columns)
    for distance, table in enumerate(_UNMIX):
        out ^= table[np.roll(columns, -distance, axis=2)]
    return out.reshape(-1, BLOCK)


def aes_ecb_decrypt(key: bytes, data: bytes) -> bytes:
    return _decrypt_blocks(key, data).tobytes()


def aes_cbc_decrypt(key: bytes, iv: bytes, data: bytes) -> bytes:
    before = np.frombuffer(iv + data, np.uint8)[: len(data)].reshape(-1, BLOCK)
    return (_decrypt_blocks(key, data) ^ before).tobytes()


class CryptAES(CryptBase):
    """Decrypts strings and streams, which have an initial block, then whole padded blocks."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def decrypt(self, data: bytes, *, strict: bool = True) -> bytes:
        """Decrypt `data`. If it was cut off, its incomplete last block is dropped."""
        iv, body = data[:BLOCK], data[BLOCK : len(data) // BLOCK * BLOCK]
        if not body:
            return b""
        text = aes_cbc_decrypt(self._key, iv, body)
        padding = text[-1]
        return text[:-padding] if 0 < padding <= BLOCK else text
