"""How kernels add to limbs in CUDA memory: integers, by atomic additions in any order."""

from __future__ import annotations

from dask_dgpu.kernels.sums.limbs import INFINITE, LIMBS, LOWEST, NEGATIVE, NOT_A_NUMBER

NUMBERS = 1 << 29
"""Most elements of one sum in the same limbs, so that these do not overflow."""

DEPOSIT = r"""
typedef unsigned long long Word;

struct Sums {
    Word* limbs;            // of one sum
    unsigned int* special;  // its mark
};

__device__ void deposit(Sums to, Long mantissa, int position) {
    if (mantissa == 0) return;
    Word* limb = to.limbs + (position >> 5);
    const int shift = position & 31;
    const Long low = (mantissa & 0xFFFFFFFFLL) << shift;
    const Long high = (mantissa >> 32) * (1LL << shift);
    const Long parts[3] = {low & 0xFFFFFFFFLL,
                           (Long) ((Word) low >> 32) + (high & 0xFFFFFFFFLL), high >> 32};
    for (int k = 0; k < 3; ++k)
        if (parts[k]) atomicAdd(limb + k, (Word) parts[k]);
}

// A number by itself: all its digits, or a mark.
__device__ __noinline__ void deposit_number(Sums to, double value) {
    const Long bits = __double_as_longlong(value);
    const int exponent = (int) ((bits >> 52) & 0x7FF);
    Long mantissa = bits & ((1LL << 52) - 1);
    if (exponent == 0x7FF) {
        atomicOr(to.special, mantissa ? NOT_A_NUMBER : bits > 0 ? INFINITE : NEGATIVE);
        return;
    }
    if (exponent) mantissa |= 1LL << 52;
    deposit(to, bits < 0 ? -mantissa : mantissa, exponent ? exponent - 1 : 0);
}

__device__ __forceinline__ Long mantissa_of(double cut, int level) {
    return (Long) ldexp(cut, -level);
}

"""
"""Requires ``Long`` and the constants."""

CONSTANTS: dict[str, int | str] = {
    "LIMBS": LIMBS,
    "LOWEST": f"({LOWEST})",
    "INFINITE": INFINITE,
    "NEGATIVE": NEGATIVE,
    "NOT_A_NUMBER": NOT_A_NUMBER,
}
