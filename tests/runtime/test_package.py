"""Ranks keep programs, and run them again under other names."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any
from weakref import ref

import dask.array as da
import numpy as np
import pytest
from dask.core import flatten
from dask.local import get_sync
from hypothesis import given
from hypothesis import strategies as st

import dask_dgpu as dgpu
from dask_dgpu.comm.local import run_local
from dask_dgpu.comm.protocol import Comm
from dask_dgpu.kernels.device.host import HostDevice
from dask_dgpu.runtime.calls import Copied
from dask_dgpu.runtime.execute import Observer, execute
from dask_dgpu.runtime.names import Names
from dask_dgpu.runtime.package import MOST_PLANS, OPENED, Package, is_nameless
from dask_dgpu.runtime.plans import plans
from dask_dgpu.runtime.prepared import prepared
from dask_dgpu.runtime.worker import programs as programs_module
from dask_dgpu.runtime.worker.programs import Programs
from graph_opt.dask_graph.emit import is_gang
from graph_opt.dask_graph.functions import is_stateless
from graph_opt.dask_graph.internals import _broadcast_trick_inner
from graph_opt.model.layout import dealt, label
from tests.graph_opt.dask_graph.test_renaming import held
from tests.planner.test_structures import Kept
from tests.support.calls import Counting
from tests.support.profiles import examples

RANKS = 3
RNG = np.random.default_rng(41)


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    with dgpu.enable(local_ranks=RANKS, when="always", on_error="raise"):
        yield


class Noting(Observer):
    """Notes what a user sees of a rank."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def progress(self, step: str, done: int, steps: int) -> None:
        self.steps.append(step)


class Ranks:
    """Ranks as those of workers, with the programs that they keep."""

    def __init__(self, limit: int = 1 << 20) -> None:
        self.kept, self.programs, self.limit = Kept(), [Programs() for _ in range(RANKS)], limit
        self.opened = 0
        self.first = 0
        self.steps: list[str] = []

    def dealt(self, count: int) -> tuple[int, ...]:
        """Return the ranks of blocks: of the first ones other ranks if ``first`` is not 0."""
        owners = list(dealt(count, RANKS))
        for at in range(min(count, 3)):
            owners[at] = (owners[at] + self.first // RANKS**at) % RANKS
        return tuple(owners)

    def package(self, z: da.Array) -> tuple[Any, ...]:
        """Return the program of an array, its plans and package, and the blocks of its inputs."""
        tasks = self.kept.optimized(z)
        (gang,) = [key for key in tasks if is_gang(key)]
        program, *lists = tasks[gang].args
        blocks = {**tasks, **z.given}
        staged = [list(get_sync(blocks, [ref.key for ref in each.args])) for each in lists]
        owners = {
            name: self.dealt(len(given))
            for (name, _), given in zip(program.inputs, staged, strict=True)
        }
        fixed = plans(program, owners, RANKS)
        package, tokens = Package.of(pickle.dumps(program), fixed.fixed.payload)
        return program, owners, package, b"".join(tokens), staged

    def compute(self, z: da.Array) -> Any:
        """Compute an array, whose attribute ``given`` has the blocks of its inputs."""
        program, owners, package, tokens, staged = self.package(z)
        watch = Noting()

        def rank(comm: Comm) -> dict[Any, Any]:
            programs = self.programs[comm.rank]
            if package not in programs:
                programs.add(package, tokens)
                self.opened += 1
            fixed, names = programs.find(package, tokens, comm.rank)
            programs.shrink(self.limit)
            values = {
                own: {
                    index: block
                    for index, block, owner in zip(
                        value.indices(), given, owners[name], strict=True
                    )
                    if owner == comm.rank
                }
                for (own, value), (name, _), given in zip(
                    fixed.program.inputs, program.inputs, staged, strict=True
                )
            }
            observer = watch if comm.rank == 0 else Observer()
            return execute(fixed.program, fixed, comm, HostDevice(), values, observer, names)

        found = {key: block for part in run_local(RANKS, rank) for key, block in part.items()}
        self.steps = watch.steps
        keys = list(flatten(z.__dask_keys__()))
        assert {*keys} <= found.keys()
        return np.block(_nested(z.__dask_keys__(), found))


def _nested(keys: Any, found: dict[Any, Any]) -> Any:
    return [_nested(each, found) for each in keys] if isinstance(keys, list) else found[keys]


def named(make: Callable[..., da.Array], *values: Any) -> da.Array:
    """Return an array of held ones, with all of their blocks."""
    arrays = [held(each, 4) for each in values]
    z = make(*arrays)
    z.given = {key: block for x in arrays for key, block in x.given.items()}
    return z


def planned(kept: Any) -> list[Any]:
    return list(kept.planned.values())


def kept_plans(ranks: Ranks) -> list[Any]:
    """Return the plans that the first rank keeps."""
    return [each.plans for kept in ranks.programs[0]._kept.values() for each in planned(kept)]


def scaled(factor: float) -> Callable[[Any], Any]:
    return lambda block: block * factor


PROGRAMS: dict[str, Callable[[da.Array], da.Array]] = {
    "product": lambda x: x @ x.T + 1,
    "loop": lambda x: (x @ x / x.sum()) @ x - x.mean(axis=0),
    "closure": lambda x: x.map_blocks(scaled(3.0), dtype=float) @ x,
    "reductions": lambda x: (x - x.mean(axis=0)) / x.std(axis=0) @ x.T,
    "overlap": lambda x: x.map_overlap(lambda b: b + 1, depth=1, boundary="reflect") @ x,
    "places": lambda x: x.map_blocks(lambda b, block_id=None: b + block_id[0], dtype=float) @ x,
}


@given(st.sampled_from(sorted(PROGRAMS)), st.integers(0, 99))
@examples(30)
def test_a_kept_program_has_results_of_its_own_data(case, seed):
    ranks = Ranks()
    rng = np.random.default_rng(seed)
    for _ in range(3):
        values = rng.random((9, 9)) + 0.1
        z = named(PROGRAMS[case], values)
        expected = PROGRAMS[case](da.from_array(values, chunks=4)).compute(scheduler="sync")
        np.testing.assert_allclose(ranks.compute(z), expected, rtol=1e-11, atol=1e-11)
        assert label(z.name) in ranks.steps
    assert ranks.opened == RANKS
    assert len(ranks.kept.graphs) == 1


def test_a_kept_program_has_results_of_its_own_numbers():
    """The same program, opened anew for each number, and for none on other data."""
    ranks, plans = Ranks(), []
    for c in (0.123456789, 0.987654321, 0.987654321, np.pi, 0.123456789):
        values = RNG.random((9, 9))
        z = named(lambda x, c=c: (x * c) @ x + np.float32(c), values)
        expected = (values * c) @ values + np.float32(c)
        np.testing.assert_allclose(ranks.compute(z), expected, rtol=1e-12)
        plans.append(kept_plans(ranks)[0])
    assert ranks.opened == RANKS
    assert len(ranks.kept.graphs) == 1
    same = [one is two for one, two in pairwise(plans)]
    assert same == [False, True, False, False]


def test_what_was_prepared_is_used_again():
    ranks = Ranks()
    found = []
    for _ in range(2):
        z = named(PROGRAMS["loop"], RNG.random((9, 9)))
        ranks.compute(z)
        (only,) = kept_plans(ranks)
        found.append(prepared(only, 0))
    assert found[0] is found[1]


@pytest.mark.parametrize("same", [True, False])
def test_functions_that_hold_a_token_see_their_own(same: bool) -> None:
    """A user may pass the name of an array, or any text like a token, to a function."""

    def tell(block: Any, text: str) -> Any:
        return block + int(text[-8:], 16)

    ranks = Ranks()
    for at in range(3):
        values = RNG.random((9, 9))
        name = held(values, 4).name if same else f"{at:032x}"
        z = named(lambda x, name=name: x.map_blocks(tell, name, dtype=float) @ x, values)
        np.testing.assert_allclose(ranks.compute(z), (values + int(name[-8:], 16)) @ values)
    assert not any(is_nameless(each, 0) for each in kept_plans(ranks))


def test_digests_are_those_of_programs():
    ranks = Ranks()
    first, second = (named(PROGRAMS["loop"], RNG.random((9, 9))) for _ in range(2))
    packages = [ranks.package(z)[2] for z in (first, second)]
    assert packages[0] == packages[1]
    tokens = [ranks.package(z)[3] for z in (first, second)]
    assert len(tokens[0]) == len(tokens[1])
    assert tokens[0] != tokens[1]
    others = [PROGRAMS["product"], lambda x: (x @ x / x.sum()) @ x - x.mean(axis=1)]
    digests = {ranks.package(named(make, RNG.random((9, 9))))[2].digest for make in others}
    assert len(digests | {packages[0].digest}) == 3
    text, plan = packages[0].text, packages[0].plans
    assert Package.of(text, plan + b" ")[0].digest != Package.of(text, plan)[0].digest


def test_programs_used_last_are_kept():
    ranks = Ranks()
    values = RNG.random((9, 9))
    for case in ("product", "loop", "closure", "product"):
        ranks.compute(named(PROGRAMS[case], values))
    assert ranks.opened == 3 * RANKS
    programs = ranks.programs[0]
    sizes = [OPENED * each.nbytes for kept in programs._kept.values() for each in planned(kept)]
    assert programs.nbytes == sum(sizes)
    # the product was used last
    programs.shrink(sizes[0] + sizes[2])
    assert (len(programs), programs.nbytes) == (2, sizes[0] + sizes[2])
    programs.shrink(sizes[0])
    assert (len(programs), programs.nbytes) == (1, sizes[0])
    programs.shrink(sizes[0] - 1)
    assert len(programs) == programs.nbytes == len(programs._kept) == 0


def test_a_program_is_opened_once_for_blocks_in_other_places(monkeypatch: pytest.MonkeyPatch):
    """Of new arrays blocks lie where a worker was free: by chance in other places each time."""
    opening = Counting(programs_module.opened)
    monkeypatch.setattr(programs_module, "opened", opening)
    ranks, digests = Ranks(), set()
    for at in range(3 * MOST_PLANS):
        values = RNG.random((9, 9))
        z = named(PROGRAMS["loop"], values)
        ranks.first = at % (2 * MOST_PLANS)
        digests.add(ranks.package(z)[2].digest)
        expected = (values @ values / values.sum()) @ values - values.mean(axis=0)
        np.testing.assert_allclose(ranks.compute(z), expected)
    assert len(digests) > MOST_PLANS
    assert opening.calls == RANKS
    assert [len(programs) for programs in ranks.programs] == [MOST_PLANS] * RANKS


def test_programs_with_equal_plans_share_them_as_long_as_one_is_kept():
    programs, sent = Programs(), []
    for constant in (2.0, 3.0):
        _, _, package, tokens, _ = Ranks().package(
            named(lambda x, c=constant: x @ x.T + c, RNG.random((9, 9)))
        )
        again = replace(package, plans=bytes(bytearray(package.plans)))  # as another message
        programs.add(again, tokens)
        sent.append(programs.find(again, tokens, 0)[0])
    one, two = sent
    assert one.program is not two.program
    assert one.fixed is two.fixed
    fixed = ref(one.fixed)
    del sent, one, two
    assert fixed() is not None
    programs.shrink(0)
    gc.collect()
    assert fixed() is None


def test_with_a_limit_of_nothing_each_run_opens_its_program():
    ranks = Ranks(limit=0)
    for _ in range(2):
        values = RNG.random((9, 9))
        np.testing.assert_allclose(
            ranks.compute(named(PROGRAMS["product"], values)), values @ values.T + 1
        )
    assert ranks.opened == 2 * RANKS
    assert not any(map(len, ranks.programs))


def test_errors_name_the_arrays_of_the_user():
    def broken(block: Any) -> Any:
        if np.isnan(block).any():
            raise ArithmeticError("no such number")
        return block

    def make(x: da.Array) -> da.Array:
        return (x @ x.T).map_blocks(broken, dtype=float).map_blocks(np.sin) @ x

    ranks, good = Ranks(), RNG.random((9, 9))
    ranks.compute(named(make, good))
    z = named(make, np.where(good > 0.9, np.nan, good))
    with pytest.raises(ArithmeticError) as raised:
        ranks.compute(z)
    assert ranks.opened == RANKS
    layers = {name.rpartition("-")[2][:8] for name in z.dask.layers}
    notes = [note for note in raised.value.__notes__ if note.startswith("in ")]
    assert notes
    assert all(note.rpartition("-")[2][:8] in layers for note in notes)


def test_names_of_a_note():
    own, real = [b"0" * 31 + b"1", b"ab" * 16], [b"c" * 32, b"d" * 32]
    names = Names(own, real)
    assert names("add-" + own[1].decode()) == "add-" + "d" * 32
    assert names("mine") == "mine"
    assert names.note(f"in add-{'ab' * 4}") == f"in add-{'d' * 8}"
    assert names.note("something else") == "something else"
    same = Names(own, list(own))
    assert same("add-" + own[1].decode()) == "add-" + own[1].decode()


DASKS: dict[str, Callable[[da.Array], da.Array]] = {
    "products": lambda x: (x @ x.T).dot(x) + da.tensordot(x, x, axes=(0, 0)),
    "moments": lambda x: (x - x.mean(axis=0)) / x.std(axis=0) @ x,
    "extremes": lambda x: (x @ x).argmax(axis=0) + x.max(axis=1),
    "sums in order": lambda x: (x @ x).cumsum(axis=0),
    "new arrays": lambda x: da.zeros_like(x @ x) + da.ones_like(x) + da.eye(9, chunks=4) @ x,
    "slices": lambda x: da.concatenate([(x @ x)[1:], x[:1]]).T,
    "neighbours": lambda x: da.diff(x @ x, axis=0),
    "factors": lambda x: da.linalg.norm(x @ x.T, axis=0) * x,
}


@pytest.mark.parametrize("name", DASKS)
def test_nothing_of_dask_is_copied_for_each_call(name: str, monkeypatch: pytest.MonkeyPatch):
    copying = Counting(Copied.of)
    monkeypatch.setattr(Copied, "of", copying)
    x = held(RNG.random((9, 9)), 4)
    ranks = Ranks()
    ranks.kept.compute(DASKS[name](x), x)
    assert copying.calls == 0
    ranks.kept.compute(DASKS[name](x).map_blocks(scaled(2.0), dtype=float) @ x, x)
    assert copying.calls > 0


def test_a_meta_is_no_value():
    """That of new arrays on GPUs has one element."""
    create = partial(_broadcast_trick_inner, meta=np.zeros(()), dtype=np.dtype("f4"))
    assert is_stateless(create)
    assert not is_stateless(partial(np.add, np.zeros(())))
    assert not is_stateless(partial(scaled(2.0), meta=np.zeros(())))
