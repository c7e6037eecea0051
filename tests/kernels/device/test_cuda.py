"""The lanes of a GPU wait for each other where they join."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.gpu

N = 1 << 22
ROUNDS = 20


def work(array: Any) -> None:
    """Keep a lane busy, and add ROUNDS in the end."""
    for _ in range(ROUNDS):
        array += 1


def test_a_device_works_on_after_it_has_released_memory() -> None:
    import cupy

    from dask_dgpu.kernels.device.cuda import CudaDevice

    device = CudaDevice()
    device.constant(np.array(3.0))
    array = device.zeros(N, "float64")
    nbytes = array.nbytes
    del array
    device.release()
    assert not device._constants
    assert cupy.get_default_memory_pool().free_bytes() < nbytes  # other tests may have cut blocks
    with device.computing():
        array = device.zeros(N, "float64") + device.constant(np.array(3.0))
    device.synchronize()
    assert bool((device.to_host(array) == 3).all())


@pytest.mark.parametrize("moves", [True, False])
def test_work_of_either_lane_is_seen_after_a_join(moves: bool) -> None:
    """Many steps, with and without work on the transfer lane between two joins."""
    from dask_dgpu.kernels.device.cuda import CudaDevice

    device = CudaDevice()
    device.begin()
    with device.computing():
        array = device.zeros(N, "float64")
    device.join()
    for _ in range(10):
        with device.computing():
            work(array)
        device.join()
        if moves:
            with device.transferring():
                work(array)
            device.join()
    device.synchronize()
    assert (device.to_host(array) == 10 * ROUNDS * (2 if moves else 1)).all()


def test_memory_of_the_transfer_lane_is_reused_after_its_readers() -> None:
    """The lane that frees memory has waited for the other, which still reads it."""
    from dask_dgpu.kernels.device.cuda import CudaDevice

    device = CudaDevice()
    device.begin()
    sums = []
    for at in range(50):
        with device.transferring():
            received = device.empty(N, "float64")
            received[...] = at
        device.join()
        with device.computing():
            result = device.zeros(N, "float64")
            for _ in range(ROUNDS):
                result += received
            sums.append(result[:: N // 4])
        device.join()
        del received
    device.synchronize()
    for at, found in enumerate(sums):
        np.testing.assert_array_equal(device.to_host(found), at * ROUNDS)
