"""Which errors say that memory has run out, by the classes and texts of CUDA's libraries."""

from __future__ import annotations

import pytest

from dask_dgpu.errors import CommAbortedError, CommError, OutOfMemoryError
from dask_dgpu.kernels.device.memory import lacks_memory


class StatusError(RuntimeError):
    """As CuPy's errors, whose text has the name of a code; cuFFT's has ``result`` instead."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        super().__init__(text)


def named(name: str, status: int, text: str) -> RuntimeError:
    kind: type[StatusError] = type(name, (StatusError,), {})
    return kind(status, text)


NCCL = (
    "NCCL error in: ProcessGroupNCCL.cpp:94, unhandled cuda error, NCCL version 2.27.5\n"
    "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure {}"
)
RMM = "CUDA error at: cuda_memory_resource.hpp:62: {}"
SHORT = [
    MemoryError("no room"),
    type("OutOfMemoryError", (MemoryError,), {})("Out of memory allocating 8,192 bytes"),
    OutOfMemoryError("twice", 2, 1),
    named("CUDARuntimeError", 2, "cudaErrorMemoryAllocation: out of memory"),
    named("CUDADriverError", 2, "CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
    named("CUBLASError", 3, "CUBLAS_STATUS_ALLOC_FAILED"),
    named("CUSOLVERError", 2, "CUSOLVER_STATUS_ALLOC_FAILED"),
    named("CuFFTError", 2, "CUFFT_ALLOC_FAILED"),
    named("CURANDError", 102, "CURAND_STATUS_ALLOCATION_FAILED"),
    RuntimeError(RMM.format("cudaErrorMemoryAllocation out of memory")),
    type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried to allocate 2 GiB."),
    type("DistBackendError", (RuntimeError,), {})(NCCL.format("2 'out of memory'")),
]
OTHERS = [
    ValueError("out of memory"),
    OSError("out of memory"),
    RuntimeError("a bug"),
    named("CUDARuntimeError", 700, "cudaErrorIllegalAddress: an illegal memory access"),
    named("CUBLASError", 14, "CUBLAS_STATUS_INTERNAL_ERROR"),
    named("CuFFTError", 8, "CUFFT_INVALID_SIZE"),
    RuntimeError(RMM.format("cudaErrorInvalidValue invalid argument")),
    type("DistBackendError", (RuntimeError,), {})(NCCL.format("700 'an illegal memory access'")),
]


def transfer(cause: BaseException | None) -> CommError:
    error = CommError("an exchange failed: out of memory")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("error", SHORT, ids=repr)
def test_memory_has_run_out(error: BaseException) -> None:
    assert lacks_memory(error)
    assert lacks_memory(transfer(error))


@pytest.mark.parametrize("error", OTHERS, ids=repr)
def test_something_else_has_happened(error: BaseException) -> None:
    assert not lacks_memory(error)
    assert not lacks_memory(transfer(error))


def test_a_transfer_without_a_cause() -> None:
    assert not lacks_memory(transfer(None))
    assert not lacks_memory(CommAbortedError("a rank ran out of memory"))


def test_a_cause_of_another_error_is_not_asked_for() -> None:
    error = LookupError("no such block")
    error.__cause__ = MemoryError()
    assert not lacks_memory(error)
