"""A sweep of Jacobi's iteration as one Triton kernel, for ``halo_torch.py``."""

import triton
import triton.language as tl


@triton.jit
def sweep_kernel(u, out, rhs, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write a part of a row; ``u`` and ``out`` have a ghost row on both sides, ``rhs`` none."""
    i = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = j < n
    at = (i + 1) * n + j
    around = tl.load(u + at - n, mask=inside) + tl.load(u + at + n, mask=inside)
    around += tl.load(u + at - 1, mask=inside & (j > 0), other=0.0)
    around += tl.load(u + at + 1, mask=j < n - 1, other=0.0)
    around -= tl.load(rhs + i * n + j, mask=inside)
    tl.store(out + at, 0.25 * around, mask=inside)
