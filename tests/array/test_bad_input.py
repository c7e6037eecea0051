"""Bad input: each wrong argument of each public function is one clear sentence at the call."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import dask_array
import numpy as np
import pytest
from distributed import Client, LocalCluster

import dask_dgpu as dgpu

X = da.ones((6, 8), chunks=(2, 4))
V = da.ones(6, chunks=2)
NAN, INF = float("nan"), float("inf")
MASKED = da.ma.masked_greater(X, 2)
OBJECTS = np.array([[1, 2]], object)
RECORDS = np.zeros((4, 4), [("a", "f8"), ("b", "i4")])


class Sparse(np.ndarray[Any, Any]):
    """Blocks of a type of their own, as those of the package sparse are."""


SPARSE = X.map_blocks(lambda block: block.view(Sparse), meta=np.empty((0, 0)).view(Sparse))

NO_ARRAYS: dict[str, Any] = {
    "None": None,
    "text": "x",
    "texts": np.array([["a", "b"], ["c", "d"]]),
    "objects": OBJECTS,
    "chunked objects": X.astype(object),
    "structured": RECORDS,
    "chunked structured": da.from_array(RECORDS, chunks=2),
    "times": np.zeros((4, 4), "M8[s]"),
    "ragged": [[1, 2], [3]],
    "dict": {"a": 1},
    "set": {1, 2},
    "function": len,
    "longdouble": np.ones((4, 4), "longdouble"),
    "masked": MASKED,
    "sparse": SPARSE,
}
TAKE_LONG = ("fft", "dct", "poisson", "einsum")
"""They take long doubles."""

REDUCTIONS = ("sum", "mean", "max", "min", "var", "std", "norm")
SUMS = ("sum", "mean", "var", "std", "norm")
LINES = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
GRIDS = ("fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "rfftn", "irfftn")
COSINES = ("dct", "idct", "dst", "idst")
COSINE_GRIDS = ("dctn", "idctn", "dstn", "idstn")

INTEGERS: tuple[Any, ...] = ("1", 1.5, NAN, True, X, [1.5])
NUMBERS: tuple[Any, ...] = (None, "1", NAN, INF, True, 1j, X)
FLAGS: tuple[Any, ...] = (None, "yes", 2, 0.5, X)
NAMES: tuple[Any, ...] = (None, "nearly", 3, True, X)


def partial(function: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
    return lambda **wrong: function(*arguments, **wrong)


def table(X: Any, V: Any) -> Iterator[tuple[str, Callable[..., Any], str, Any]]:
    """Yield a name, a function of what is wrong, its parameter, and the wrong value.

    ``X`` and ``V`` are arrays, of Dask or of dask_array.
    """
    for kind in REDUCTIONS:
        function = partial(getattr(dgpu, kind), X)
        yield from ((kind, function, "axis", bad) for bad in (*INTEGERS, (0, "1"), {0}))
        yield from ((kind, function, "axis", bad) for bad in (2, -3, (0, 0)))
        yield from ((kind, function, "keepdims", bad) for bad in FLAGS)
    for kind in SUMS:
        function = partial(getattr(dgpu, kind), X)
        yield from ((kind, function, "method", bad) for bad in NAMES)
    for kind in ("sum", "mean", "var", "std"):
        function = partial(getattr(dgpu, kind), X)
        yield from ((kind, function, "dtype", bad) for bad in ("flot32", object, "U3", 3, {}))
    for kind in ("var", "std"):
        function = partial(getattr(dgpu, kind), X)
        yield from ((kind, function, "ddof", bad) for bad in NUMBERS)
    yield from (("dot", partial(dgpu.dot, V, V), "method", bad) for bad in NAMES)
    for kind in (*LINES, *COSINES):
        function = partial(getattr(dgpu.fft, kind), X)
        yield from ((kind, function, "n", bad) for bad in (*INTEGERS, 0, -1))
        yield from ((kind, function, "axis", bad) for bad in (*INTEGERS, 2, -3))
        yield from ((kind, function, "norm", bad) for bad in NAMES[1:])
    for kind in (*GRIDS, *COSINE_GRIDS):
        function = partial(getattr(dgpu.fft, kind), X)
        lengths = (3, "ab", X, (1.5, 2), (True, 2), (3, -2), {3, 4}, 2.5, (3, "4"))
        yield from ((kind, function, "axes", bad) for bad in (0, "01", (0, 1.5), (0, 2), {0: 1}))
        yield from (
            (kind, partial(lambda f, s: f(s=s, axes=(0, 1)), function), "s", bad) for bad in lengths
        )
        yield from ((kind, function, "norm", bad) for bad in NAMES[1:])
    for kind in (*COSINES, *COSINE_GRIDS):
        function = partial(getattr(dgpu.fft, kind), X)
        yield from ((kind, function, "type", bad) for bad in (None, "2", 2.0, 0, 5, True, [2], X))
    for kind, function in (
        ("stencil", partial(dgpu.stencil, X)),
        ("jacobi", partial(dgpu.jacobi, X, X)),
        ("poisson", partial(dgpu.poisson, X)),
    ):
        wrong = (None, "nearly", True, ("zero",), ("zero", "nearly"), ("zero", None), X, {})
        yield from ((kind, function, "boundary", bad) for bad in wrong)
    kernels = (None, "laplacian", [[1, 2]], [1.0], [[1], [2, 3]], np.full((3, 3), NAN), OBJECTS)
    yield from (("stencil", partial(dgpu.stencil, X), "kernel", bad) for bad in kernels)
    yield from (("matmul", partial(dgpu.matmul, X, X.T), "strategy", bad) for bad in NAMES)
    yield from (("matmul", partial(dgpu.matmul, X, X.T), "wire_dtype", b) for b in NAMES[1:])
    wrong = (*NUMBERS[1:], 0, -1.0, 1.5, "nearly")
    yield from (("matmul", partial(dgpu.matmul, X, X.T), "sparse_threshold", b) for b in wrong)
    counts = (None, *INTEGERS, -1)
    yield from (("stencil", partial(dgpu.stencil, X), "iterations", bad) for bad in counts)
    jacobi = partial(dgpu.jacobi, X, X)
    yield from (("jacobi", jacobi, "max_iterations", bad) for bad in counts)
    yield from (("jacobi", jacobi, "tol", bad) for bad in (*NUMBERS, 0, -1.0))
    yield from (("jacobi", jacobi, "dx", bad) for bad in (*NUMBERS, 0, -1.0, 1e-200))
    wrong = (*NUMBERS[:-1], 0, -1.0, "a", (1.0,), (1.0, "a"), (1.0, None))
    yield from (("poisson", partial(dgpu.poisson, X), "dx", bad) for bad in wrong)
    for kind in ("einsum", "einsum_path"):
        function = partial(getattr(dgpu, kind), "ij,kj,kl->il", X, X, X)
        paths = ((0, 1), [(0, 1)], [(0, 0), (0, 1)], [(0, 3), (0, 1)], [(0, 1.5), (0, 1)], [()])
        for bad in (None, "nearly", 3, X, {(0, 1)}, [("0", "1"), (0, 1)], *paths):
            yield kind, function, "optimize", bad
        for bad in (0, -1, "-1 GiB", 0.5, NAN, INF, "much", "", True, [1], X, 7):
            yield kind, function, "memory_limit", bad
    yield from (("explain", partial(dgpu.explain, X), "measured", bad) for bad in FLAGS)
    yield from (("explain", dgpu.explain, "array", bad) for bad in (None, "x", 3, np.ones(3)))
    benefit = dgpu.cost.overlap_benefit
    counts = (*INTEGERS, 0, -1)
    yield from (("overlap_benefit", partial(benefit, 1, 1), "chunks", bad) for bad in counts)
    for name, other in (("compute_s", "comm_s"), ("comm_s", "compute_s")):
        good = {other: 1, "chunks": 1}
        for bad in (*NUMBERS, -1.0):
            yield ("overlap_benefit", lambda good=good, **each: benefit(**good, **each), name, bad)
    clients = (None, "tcp://127.0.0.1:1", 3, X, np.ones(3))
    yield from (("check_health", dgpu.check_health, "client", bad) for bad in clients)
    yield from (("enable", dgpu.enable, "client", bad) for bad in clients[1:])
    yield from (("start", dgpu.start, "n_workers", bad) for bad in (*INTEGERS, 0, -1))
    yield from (("start", dgpu.start, "device", bad) for bad in (None, "gpu", 3, X))
    yield ("start", dgpu.start, "asynchronous", True)


SETTINGS: list[tuple[str, Any]] = [
    *(
        (name, bad)
        for name in ("memory_limit", "memory_cap")
        for bad in (0, -1, "-1 GiB", 0.5, NAN, INF, "much", True, [1])
    ),
    *(("memory_safety_margin", bad) for bad in (1, 2, -0.1, NAN, INF, "0.2", None, True)),
    *(("gang_timeout", bad) for bad in (0, -1, "0s", "-3s", NAN, INF, "soon", None, True)),
    *(("gang_grace", bad) for bad in (-1, "-3s", NAN, INF, "soon", None)),
    *(("gang_kept_programs", bad) for bad in (-1, "-1 MiB", NAN, INF, "many", None, True)),
    *(("gang_kept_recordings", bad) for bad in (-1, "-1 MiB", NAN, INF, "many", None, True)),
    *(("gang_restarts", bad) for bad in (-1, 1.5, "3", None, True)),
    *(("local_ranks", bad) for bad in (0, -1, 1.5, "3", None, True, NAN)),
    *(("comm_ports", bad) for bad in (0, "30000", "2-1", "0-9", "1-65536", "a-b", True, [1])),
    *(("comm_plaintext", bad) for bad in ("yes", 1, None)),
    *(("regions", bad) for bad in ("yes", 1, None)),
    *(
        (name, bad)
        for name in (
            *("device", "comm", "when", "on_error", "sum_method", "fft_output_layout"),
            "matmul_wire_dtype",
        )
        for bad in ("nearly", None, 3, True, NAN)
    ),
]

SENTENCE = re.compile(r"^[^\n]{10,400}$")


def refuses(call: Callable[[], Any], name: str) -> str:
    """Return the message of a call that must raise."""
    with pytest.raises((TypeError, ValueError)) as raised:
        call()
    message = str(raised.value)
    assert SENTENCE.match(message), message
    assert re.search(rf"\b{name}\b", message), message
    # raised by this package for the user, not by something that it called in good faith
    last = inspect.getinnerframes(raised.tb)[-1]
    assert (
        "dask_dgpu" in last.filename
        or isinstance(raised.value, np.exceptions.AxisError)
        or ("repeated axis" in message)
    ), (last.filename, message)
    return message


PACKAGES = {"dask.array": da, "dask_array": dask_array}
CALLS = {
    name: list(table(package.ones((6, 8), chunks=(2, 4)), package.ones(6, chunks=2)))
    for name, package in PACKAGES.items()
}


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("kind", dict.fromkeys(kind for kind, *_ in CALLS["dask.array"]))
def test_an_argument(kind: str, package: str) -> None:
    for each, function, name, bad in CALLS[package]:
        if each == kind:
            refuses(lambda call=function, name=name, bad=bad: call(**{name: bad}), name)


ARRAYS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    **{kind: ("x", getattr(dgpu, kind)) for kind in REDUCTIONS},
    "dot": ("x", lambda x: dgpu.dot(x, V)),
    "dot, right": ("y", lambda x: dgpu.dot(V, x)),
    "fft": ("a", dgpu.fft.fft2),
    "dct": ("x", dgpu.fft.dctn),
    "stencil": ("x", dgpu.stencil),
    "jacobi": ("u0", lambda x: dgpu.jacobi(x, X)),
    "jacobi, right": ("rhs", lambda x: dgpu.jacobi(X, x)),
    "poisson": ("rhs", dgpu.poisson),
    "matmul": ("a", lambda x: dgpu.matmul(x, X, strategy="row")),
    "matmul, right": ("b", lambda x: dgpu.matmul(X, x, strategy="column")),
    "einsum": ("operand 1", lambda x: dgpu.einsum("...,...", X, x)),
}


@pytest.mark.parametrize("function", ARRAYS)
def test_an_array(function: str) -> None:
    name, call = ARRAYS[function]
    for array, bad in NO_ARRAYS.items():
        if not (function in TAKE_LONG and array == "longdouble"):
            refuses(lambda bad=bad: call(bad), name)


@pytest.mark.parametrize(("name", "bad"), SETTINGS, ids=str)
def test_a_setting(name: str, bad: Any) -> None:
    before = dask.config.get("array_optimize", None)
    dotted = name.replace("on_error", "on-error").replace("safety_margin", "safety-margin")
    dotted = dotted.replace("local_ranks", "local-ranks").replace("output_layout", "output-layout")
    dotted = dotted.replace("wire_dtype", "wire-dtype").replace("kept_", "kept-")
    message = refuses(lambda: dgpu.enable(**{name: bad}), "setting")
    assert f"dgpu.{dotted.replace('_', '.')}" in message
    assert dask.config.get("array_optimize", None) is before


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda: dgpu.enable(gang_timeou="3s"), "gang_timeout"),
        (lambda: dgpu.enable(Device="cpu"), "device"),
        (lambda: dgpu.enable(on_error="rais"), "raise"),
        (lambda: dgpu.enable(comm="nccll"), "nccl"),
        (lambda: dgpu.start(device="cuda:0"), "cuda"),
        (lambda: dgpu.start(n_worker=2), "n_workers"),
        (lambda: dgpu.start(dashboard_adress=":0"), "dashboard_address"),
        (lambda: dgpu.fft.fft(X, norm="orto"), "ortho"),
        (lambda: dgpu.fft.dctn(X, norm="Forward"), "forward"),
        (lambda: dgpu.sum(X, method="compensate"), "compensated"),
        (lambda: dgpu.dot(V, V, method="reproduce"), "reproducible"),
        (lambda: dgpu.mean(X, dtype="flot32"), "float32"),
        (lambda: dgpu.stencil(X, boundary="periodical"), "periodic"),
        (lambda: dgpu.jacobi(X, X, boundary=("zero", "reflekt")), "reflect"),
        (lambda: dgpu.poisson(X, 1.0, "zeros"), "zero"),
        (lambda: dgpu.matmul(X, X.T, strategy="rows"), "row"),
        (lambda: dgpu.matmul(X, X.T, wire_dtype="bfloat"), "bfloat16"),
        (lambda: dgpu.enable(matmul_wire_dtype="flot16"), "float16"),
        (lambda: dgpu.einsum("ij,jk", X, X.T, optimize="greed"), "greedy"),
    ],
)
def test_a_name_that_is_almost_right(call: Callable[[], Any], meant: str) -> None:
    assert f"(did you mean {meant!r}?)" in refuses(call, "unknown")


def test_a_setting_of_the_configuration_that_is_almost_right() -> None:
    with dask.config.set({"dgpu.gang.timeouts": "3s"}):
        assert "(did you mean 'timeout'?)" in refuses(dgpu.enable, "dgpu.gang")


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.mark.parametrize("bad", [None, "1", 0, -1, NAN, INF, True, X])
def test_timeout_of_check_health(client: Client, bad: Any) -> None:
    refuses(lambda: dgpu.check_health(client, timeout=bad), "timeout")


def test_a_client_that_is_closed(client: Client) -> None:
    closed = Client(client.scheduler.address, set_as_default=False)
    closed.close()
    refuses(lambda: dgpu.check_health(closed), "client")
    refuses(lambda: dgpu.enable(closed), "client")


def test_progress_of_nothing() -> None:
    for nothing in ((), (3,), (None,), (X,), ("key",)):
        refuses(lambda nothing=nothing: dgpu.progress(*nothing), "futures")


def test_values_that_are_allowed() -> None:
    """What looks odd but is right."""
    np.testing.assert_array_equal(dgpu.sum(X, axis=np.int64(1), keepdims=1).compute(), 8.0)
    assert dgpu.sum(X, axis=[0, 1]).compute() == 48
    assert dgpu.var(X, ddof=np.float32(1)).compute() == 0
    assert dgpu.fft.fft2(X, s=np.array([6, 8]), axes=np.array([0, 1])).shape == (6, 8)
    assert dgpu.poisson(X, np.float32(0.5), np.array(["zero", "zero"])).shape == (6, 8)
    assert dgpu.stencil([[1, 2, 3]], boundary=np.float64(2), iterations=np.int8(0)).shape == (1, 3)
    with dgpu.enable(gang_grace=0, memory_safety_margin=0, memory_limit="1 GiB", local_ranks=2.0):
        pass
