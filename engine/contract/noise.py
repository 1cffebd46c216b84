"""Noise that depends on nothing but its key: a counter-based generator for Gumbel noise per (seed, position, token).

A token drawn as argmax(logit / temperature + noise) has exactly the distribution softmax(logit / temperature) (Gumbel,
1954), and is the same whatever else is in the batch, before or after a restart, with or without speculation (D5).
"""

import hashlib
from typing import Final

import numpy as np
import numpy.typing as npt

UIntArray = npt.NDArray[np.uint32]
_MASK: Final = (1 << 64) - 1
_GOLDEN: Final = np.uint32(0x9E3779B9)
_FIRST: Final = np.uint32(0x85EBCA6B)  # the two multipliers of MurmurHash3's 32-bit finalizer
_SECOND: Final = np.uint32(0xC2B2AE35)


def seed_of(text: str) -> int:
    """The seed of whoever gives none: 64 bits of a hash of the request's id."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def mix(value: int) -> int:
    """64 bits, each of which depends on all of `value`: SplitMix64's output (Steele et al., 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def spread(tokens: npt.NDArray[np.integer]) -> UIntArray:
    """Token ids as the generator takes them, uint32 of the same shape; worth keeping for a whole vocabulary."""
    return tokens.astype(np.uint32) * _GOLDEN


def noise_bits(seed: int, position: int, tokens: UIntArray, scratch: UIntArray | None = None) -> UIntArray:
    """32 uniform bits for each token (as `spread` made them) at that position of an answer with that seed.

    `scratch`: uint32 (2, tokens), the result is its first line; a new one for a whole vocabulary costs as much as the
    arithmetic (its pages are touched for the first time).
    """
    bits, shifted = np.empty((2, len(tokens)), np.uint32) if scratch is None else scratch
    key = mix(mix(seed) ^ position)
    np.add(tokens, np.uint32(key & 0xFFFFFFFF), out=bits)
    np.right_shift(bits, np.uint32(16), out=shifted)
    bits ^= shifted
    bits *= _FIRST
    bits ^= np.uint32(key >> 32)
    np.right_shift(bits, np.uint32(13), out=shifted)
    bits ^= shifted
    bits *= _SECOND
    np.right_shift(bits, np.uint32(16), out=shifted)
    bits ^= shifted
    return bits


def gumbel(bits: UIntArray) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise, float64, from uniform bits."""
    uniform = (bits.astype(np.float64) + 0.5) * 2.0**-32
    return -np.log(-np.log(uniform))


def bits_above(noise: float) -> int:
    """The least bits whose noise may be above that value, 0 to 2**32; errs to the low side, by a few at most."""
    with np.errstate(over="ignore"):
        uniform = float(np.exp(-np.exp(-noise)))
    return max(int(uniform * 2.0**32) - 8, 0)
