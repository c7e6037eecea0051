"""Starting a cluster on this machine; errors name the missing workers and the cause."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Literal

import dask

from dask_dgpu.arguments import check_choice, expected, integer, suggestion
from dask_dgpu.environment.facts import current_client
from dask_dgpu.environment.gpus import GpuMemory, pool_bytes, read_memory, visible_gpus
from dask_dgpu.environment.settings import SHORT, keywords, read
from dask_dgpu.errors import DgpuError
from dask_dgpu.session.collector import collect_less_often
from dask_dgpu.session.enable import Enabled, enable
from dask_dgpu.session.guard import require_main_guard

if TYPE_CHECKING:
    from distributed import Client

BACKEND = "array.backend"

LATE_SECONDS = 30.0
"""How long workers may be missing after the cluster reports that it has started."""

INTERVAL = 0.1
"""Seconds between two looks at the list of workers."""

VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)

SETTINGS = {
    keyword.name: keyword
    for keyword in keywords()
    if keyword.name not in ("device", "memory_limit")
}
"""The settings that :func:`start` passes on; ``memory_limit`` is that of Dask's workers there."""

DEFAULT_POOL = 0.5
"""Initial size of a pool, as a fraction of all memory, if the free memory is unknown."""


def start(
    n_workers: int | None = None,
    *,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    **options: Any,
) -> Client:
    """Start a cluster on this machine, connect to it and enable dask_dgpu.

    Parameters
    ----------
    n_workers : int, optional
        Workers, one rank each; by default one per GPU, or one per core. With GPUs at most
        their number.
    device : {"auto", "cpu", "cuda"}, optional
        ``"cuda"`` starts a ``LocalCUDACluster`` and creates arrays on the GPUs; ``"cpu"``
        starts a ``LocalCluster`` with NumPy blocks; ``"auto"`` selects ``"cuda"`` if there
        are GPUs.
    comm_transport, comm_plaintext, comm_ports, when, on_error : optional
        Settings, as in :func:`enable`.
    regions, fuse, local_ranks, fft_output_layout, cost_measure : optional
        Settings, as in :func:`enable`.
    matmul_wire_dtype, sum_method, gang_timeout, gang_grace, gang_restarts : optional
        Settings, as in :func:`enable`.
    gang_kept_programs, gang_kept_recordings, memory_safety_margin, memory_cap : optional
        Settings, as in :func:`enable`.
    **cluster_kwargs
        Passed on to the cluster, also ``memory_limit``, which is that of a worker's process.
        Without GPUs workers have one thread unless ``threads_per_worker`` is given here, and
        keep an eighth of ``memory_limit`` for new arrays unless ``worker_class`` is given.
        With GPUs CuPy uses an RMM pool, at first of half the free memory of the fullest GPU,
        unless an ``rmm_*`` argument is given. Workers of one host read blocks in pools directly.

    Returns
    -------
    distributed.Client
        Closing it closes the cluster, and restores what was enabled before; what was enabled
        since on another cluster stays. Until then Python's garbage collector has three times
        its thresholds, as ``dask scheduler`` sets them.

    Raises
    ------
    ValueError
        If ``device`` is unknown, or ``"cuda"`` on a machine without GPUs, ``n_workers`` is
        larger than the number of GPUs, or a setting is not allowed.
    DgpuError
        If a script calls this outside of ``if __name__ == "__main__":``, a GPU has too
        little free memory, a worker does not start, or ``array.query-planning`` is on.

    See Also
    --------
    enable : Do the same on an existing cluster.
    """
    from distributed import Nanny, Worker

    from dask_dgpu.session.client import OwningClient
    from dask_dgpu.session.keeping import KeepingNanny

    check_choice("device", device, ("auto", "cpu", "cuda"))
    if n_workers is not None:
        n_workers = integer("n_workers", n_workers, 1)
    settings = {name: options[name] for name in options if name in (*SETTINGS, *SHORT)}
    read(settings)
    cluster_kwargs = {name: options[name] for name in options if name not in settings}
    if cluster_kwargs.get("asynchronous"):
        raise TypeError("expected asynchronous to be False, got True: start() waits for workers")
    if cluster_kwargs.get("processes", True):
        require_main_guard("dask_dgpu.start()")
    gpus = visible_gpus(cluster_kwargs.get("CUDA_VISIBLE_DEVICES")) if device != "cpu" else ()
    if device == "cuda" and not gpus:
        raise ValueError("expected device to be auto or cpu, got 'cuda': there is no CUDA device")
    if gpus and n_workers is not None and n_workers > len(gpus):
        expected("n_workers", f"at most {len(gpus)}, one per GPU", n_workers)
    gpus = gpus[:n_workers]
    if gpus:
        from dask_cuda import LocalCUDACluster as ClusterType

        cluster_kwargs = cuda_options(gpus, cluster_kwargs)
    else:
        from distributed import LocalCluster as ClusterType

        cluster_kwargs = {"threads_per_worker": 1, "dashboard_address": ":0"} | cluster_kwargs
    check_options(cluster_kwargs, ClusterType, Nanny, Worker)
    if not gpus and cluster_kwargs.get("processes", True):
        cluster_kwargs.setdefault("worker_class", KeepingNanny)
    earlier = current_client()
    with explained(gpus) as errors:
        cluster = ClusterType(n_workers=n_workers, **cluster_kwargs)
        client = OwningClient(cluster)
        try:
            require_workers(client, cluster.plan, gpus, errors)
            enabled = enable(client, device="cuda" if gpus else "cpu", **settings)
            backend = dask.config.get(BACKEND, None) if gpus else None
            client.undo = partial(_undo_start, enabled, backend, collect_less_often())
            if isinstance(earlier, OwningClient):
                earlier.later = client
        except BaseException:
            client.close()
            raise
    if gpus:
        dask.config.set({BACKEND: "dgpu"})
    return client


# the settings are those of dgpu.yaml, and editors show this signature
_workers, _device, _options = signature(start).parameters.values()
_signature = signature(start).replace(
    parameters=[_workers, _device, *SETTINGS.values(), _options.replace(name="cluster_kwargs")]
)
start.__signature__ = _signature  # type: ignore[attr-defined]


def _undo_start(
    enabled: Enabled, backend_before: str | None, restore_collector: Callable[[], None]
) -> None:
    """Restore what was before, but for what has been enabled since on another cluster."""
    if enabled.is_current:
        enabled.restore()
    restore_collector()
    if backend_before is not None:
        dask.config.set({BACKEND: backend_before})


def cuda_options(gpus: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a ``LocalCUDACluster`` of one worker per GPU.

    With an ``rmm_*`` option among the user's ``options``, no other is added. Raises
    :class:`DgpuError` if a GPU has too little free memory for a worker.
    """
    if any(name.startswith("rmm_") for name in options):
        return dict(options)
    pool = pool_bytes(read_memory(gpus))
    return {
        **options,
        "rmm_pool_size": DEFAULT_POOL if pool is None else pool,
        "rmm_allocator_external_lib_list": "cupy",
    }


def check_options(options: Mapping[str, Any], *classes: type) -> None:
    """Raise for an option of a cluster that no class and no base of one has as a parameter.

    Clusters pass unknown options on to their workers, and every worker fails.
    """
    if "worker_class" in options:
        return
    bases = {base for each in classes for base in each.__mro__ if base is not object}
    known = {
        name
        for base in bases
        for name, parameter in signature(base).parameters.items()
        if parameter.kind not in VARIADIC
    }
    for name in options:
        if name not in known:
            raise TypeError(
                f"unknown argument {name!r}{suggestion(name, sorted({*known, *SETTINGS}))}"
            )


@contextmanager
def explained(gpus: Sequence[str]) -> Iterator[list[str]]:
    """Collect the errors that nannies log about workers that fail to start; yield them.

    With GPUs, any error becomes a :class:`DgpuError` with the free memory of each GPU.
    """
    collector = _Errors()
    nannies = logging.getLogger("distributed.nanny")
    nannies.addHandler(collector)
    try:
        yield collector.errors
    except DgpuError:
        raise
    except Exception as error:
        if not gpus:
            raise
        raise DgpuError(
            f"a worker on the GPUs could not start: {type(error).__name__}: {error}"
            + _free(read_memory(gpus))
        ) from error
    finally:
        nannies.removeHandler(collector)


def require_workers(
    client: Client,
    names: Collection[Any],
    gpus: Sequence[str],
    errors: Sequence[str],
    patience: float = LATE_SECONDS,
) -> None:
    """Wait for the workers of these names.

    If one is still missing after ``patience`` seconds, raise a :class:`DgpuError` with the worker,
    its GPU and the known errors.
    """
    wanted = set(map(str, names))
    deadline = time.monotonic() + patience
    while missing := wanted - _names(client):
        if time.monotonic() > deadline:
            raise DgpuError(missing_text(missing, len(wanted), gpus, errors))
        time.sleep(INTERVAL)


def missing_text(
    missing: Collection[str], wanted: int, gpus: Sequence[str], errors: Sequence[str]
) -> str:
    """Return the message about workers that did not start; dask-cuda names one after its GPU."""
    names = sorted(missing)
    what = "on GPU " if gpus else ""
    text = f"{len(names)} of {wanted} workers did not start: {what}{', '.join(names)}"
    if errors:
        text += f" ({'; '.join(dict.fromkeys(errors))})"
    memories: list[GpuMemory] = []
    with suppress(Exception):  # the driver may fail too; the message is still useful
        memories = read_memory([name for name in names if name in gpus])
    return text + _free(memories)


def _free(memories: Sequence[GpuMemory]) -> str:
    return f"; {' and '.join(map(str, memories))} now" if memories else ""


def _names(client: Client) -> set[str]:
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    return {str(worker["name"]) for worker in workers}


class _Errors(logging.Handler):
    """Collects the exceptions of log records."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.errors: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            self.errors.append(f"{type(error).__name__}: {error}")
