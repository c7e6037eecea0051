"""What only the scheduler knows: plans, structures, and places of blocks to come."""

from __future__ import annotations

from random import randrange

import numpy as np
import pytest
from distributed import wait

import dask_dgpu as dgpu
from tests.cluster.conftest import SETTINGS
from tests.cluster.faults import pretend_free_memory
from tests.cluster.observe import plans_made, structures
from tests.cluster.test_kept_programs import check

pytestmark = pytest.mark.cluster


def test_only_the_scheduler_plans(client, on_device):
    """Twice at most: for blocks dealt out evenly, and for blocks where they are."""
    shape = (71, 53)
    x, y = (on_device(np.ones(each), 20).persist() for each in (shape, shape[::-1]))
    wait([x, y])

    before, of_workers = client.run_on_scheduler(plans_made), client.run(plans_made)
    wait((x @ y).persist())
    first = client.run_on_scheduler(plans_made)
    assert 1 <= first - before <= 2
    assert client.run(plans_made) == of_workers
    wait((x @ y).persist())  # Dask has forgotten the first
    assert client.run_on_scheduler(plans_made) == first


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
def test_structures_stay_known_when_free_memory_changes_a_little(client, in_memory, monkeypatch):
    """Each ``enable`` reads the memory of the workers anew."""
    counts, some = [], randrange(64, 127)
    for seed, change in enumerate((0, 0, 7 << 20, -3000)):
        pretend_free_memory((some << 26) + (1 << 25) + change, monkeypatch)
        with dgpu.enable(client, **SETTINGS):
            check(in_memory, [seed])
        counts.append(structures(client))
    assert counts[1] == counts[-1]
