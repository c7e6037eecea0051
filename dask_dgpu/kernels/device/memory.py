"""Errors by which libraries say that memory has run out."""

from __future__ import annotations

import re

from dask_dgpu.errors import CommError

SIGNS = re.compile("out of memory|OUT_OF_MEMORY|cudaErrorMemoryAllocation|ALLOC(ATION)?_FAILED")
"""What the text of a ``RuntimeError`` contains if an allocation has failed.

==================================  =====================================================
class                               text
==================================  =====================================================
CuPy's ``CUDARuntimeError``         ``cudaErrorMemoryAllocation: out of memory``
CuPy's ``CUDADriverError``          ``CUDA_ERROR_OUT_OF_MEMORY: out of memory``
CuPy's ``CUBLASError``              ``CUBLAS_STATUS_ALLOC_FAILED``, as cuSOLVER, cuSPARSE
CuPy's ``CuFFTError``               ``CUFFT_ALLOC_FAILED``
CuPy's ``CURANDError``              ``CURAND_STATUS_ALLOCATION_FAILED``
``torch.OutOfMemoryError``          ``CUDA out of memory. Tried to allocate ...``
torch's ``DistBackendError``        ``... Cuda failure 2 'out of memory'``, in NCCL
RMM's, if a CUDA call fails         ``CUDA error at: ... cudaErrorMemoryAllocation ...``
==================================  =====================================================
"""


def lacks_memory(error: BaseException) -> bool:
    """Return whether an error says that the memory of a host or a device has run out.

    CuPy's pool and RMM raise a ``MemoryError``. Other libraries for GPUs have classes of their own,
    which are not imported here. A failed transfer has the error of its library as its cause.
    """
    if isinstance(error, CommError):
        return error.__cause__ is not None and lacks_memory(error.__cause__)
    if isinstance(error, RuntimeError):
        return SIGNS.search(str(error)) is not None
    return isinstance(error, MemoryError)
