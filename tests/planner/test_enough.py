"""The least settings of memory under which enough is left beside other results."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dask_dgpu.cost.table import at_least
from dask_dgpu.environment.facts import ALONE, usable
from dask_dgpu.environment.settings import read
from dask_dgpu.planner.present import enough, left_of
from tests.support.profiles import examples

BYTES = st.one_of(st.integers(1, 2000), st.integers(1, 1 << 45))
MARGINS = st.one_of(st.sampled_from([0.0, 0.2, 0.25]), st.floats(0, 0.99))


@examples(300)
@given(BYTES, st.one_of(st.just(0), BYTES), MARGINS, BYTES, st.one_of(st.none(), BYTES))
def test_the_least_settings_are_enough(
    needed: int, others: int, margin: float, limit: int, cap: int | None
) -> None:
    """No byte less is, and as much as a text of them says is too."""
    values = {"memory_limit": limit, "memory_cap": cap, "memory_safety_margin": margin}
    settings = read(values)

    def left(**changes: int | str) -> float:
        most = usable(ALONE, read(values | changes))
        assert most is not None
        return left_of(most, others)

    found = enough(needed, others, ALONE, settings)
    changes = {f"memory_{name}": n for name, n in found._asdict().items() if n is not None}
    assert (left() < needed) == bool(changes)
    assert left(**changes) >= needed
    assert left(**{name: at_least(nbytes) for name, nbytes in changes.items()}) >= needed
    for name, nbytes in changes.items():
        assert left(**changes | {name: nbytes - 1}) < needed


def test_the_memory_of_a_device_counts_without_a_limit() -> None:
    settings = read({"memory_safety_margin": 0.5})
    assert enough(100, 0, ALONE, settings) == (None, None)  # nobody knows it
    assert enough(100, 0, replace(ALONE, device_memory=200), settings) == (None, None)
    assert enough(100, 0, replace(ALONE, device_memory=199), settings) == (200, None)


def test_what_others_hold_is_rounded_to_a_share_of_the_new_settings() -> None:
    settings = read({"memory_limit": 1000, "memory_safety_margin": 0})
    found = enough(6300, 1, ALONE, settings)
    assert found == (6400, None)  # one byte of others counts as 1/64
    assert enough(6300, 101, ALONE, settings) == (6464, None)  # with steps of 101 bytes
