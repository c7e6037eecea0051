"""What a display asks of the scheduler while gangs run."""

from __future__ import annotations

from typing import Any

import dask.array as da
import pytest
from distributed import Client, Event, wait

from dask_dgpu.observe import progress
from dask_dgpu.observe.under_way import Bar, awaited, reached
from tests.cluster.observe import eventually, held_back
from tests.cluster.test_progress import A, Place

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


def test_a_notebook_whose_client_closes(client, on_device):
    place = Place()
    with Client(client.scheduler.address, set_as_default=False) as other:
        future = other.submit(abs, -1)
    progress._draw_below(progress._looks(other, [future]), place)
    assert "<div>the display ends: " in place.drawn[-1]


def test_steps_are_counted_while_a_gang_runs(client, on_device):
    x = on_device(A, (6, 20)).persist()
    spectrum = da.fft.fft2(x)
    held = spectrum.map_blocks(held_back, "go-on", meta=spectrum._meta)  # not called here
    y = da.fft.fft2(held).persist()
    gangs = eventually(lambda: client.run_on_scheduler(awaited, keys=list(y.dask))[1])

    def looked() -> Any:
        _, running = client.run_on_scheduler(reached, tasks=[], gangs=gangs)
        (gang,) = running or [Bar(0, "", 0, 0)]
        return gang.done and gang

    gang = eventually(looked)
    assert (gang.done, gang.total) == (1, 3)
    Event("go-on", client=client).set()
    wait(y)
    assert client.run_on_scheduler(reached, tasks=gangs, gangs=gangs) == (len(gangs), [])
