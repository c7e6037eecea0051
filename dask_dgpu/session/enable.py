"""Switching dask_dgpu on and off."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import dask
import dask.array
from dask.array.backends import array_creation_dispatch
from dask.array.core import Array

from dask_dgpu.arguments import check_choice, check_client, expected, integer
from dask_dgpu.array.fft import install as fft_functions
from dask_dgpu.array.reductions import install as sum_functions
from dask_dgpu.environment.facts import current_client, gather
from dask_dgpu.environment.settings import fft_output_layout, read
from dask_dgpu.errors import DgpuError
from dask_dgpu.planner.optimizer import GraphOptimizer
from dask_dgpu.planner.predict import usable
from dask_dgpu.session.backend import array_backend
from dask_dgpu.session.delayed import plain_to_delayed
from dask_dgpu.session.main_guard import require_main_guard
from graph_opt.dask_graph.internals import MISSING

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)

OPTIMIZE = "array_optimize"
BACKEND = "array.backend"
TO_DELAYED = "to_delayed"
FFT_LAYOUT = "dgpu.fft.output-layout"


@dataclass(frozen=True)
class Enabled:
    """What :func:`enable` returns; as a context manager it undoes that at the end.

    Parameters
    ----------
    optimizer : GraphOptimizer
        What Dask calls on array graphs.
    before : mapping of str to value
        What was set before, restored at the end of a ``with`` block.
    """

    optimizer: GraphOptimizer
    before: Mapping[str, Any]

    def __enter__(self) -> Enabled:
        """Return itself: it is on already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Restore what was set before."""
        _restore(self.before)


def enable(client: Client | None = None, **settings: Any) -> Enabled:
    """Have Dask arrays computed from now on use gangs where they pay.

    Parameters
    ----------
    client : distributed.Client, optional
        The cluster whose workers form gangs; by default the current client, if
        there is one. Without any, products run in this process.
    **settings
        Settings that differ from ``dgpu.*`` of ``dask.config``, with underscores for
        dots and hyphens: ``gang_timeout="30s"``, ``on_error="raise"``.

    Returns
    -------
    Enabled
        Usable as a context manager that restores what was set before.

    Raises
    ------
    ValueError
        When a setting is unknown or not allowed, ``device`` is ``"cuda"`` and no worker
        has a CUDA device, or ``comm`` is a transport that a worker lacks. Without a
        client this process counts instead.
    TypeError
        When ``client`` is no client, or an asynchronous one.
    DgpuError
        When Dask lacks an internal that the rules need; when ``array.query-planning`` is on:
        that engine has no matmul and no FFT; when the cluster has no worker, nor gets one
        within half a minute; or was enabled with another device before, which it keeps.

    See Also
    --------
    start : Start a cluster on this machine, and enable.
    explain : Say what is rewritten, and what is not.

    Notes
    -----
    It holds for all clients of this process and for graphs computed from now on.
    Calling it again replaces the settings; nothing is wrapped twice. The functions of
    ``dask.array.fft`` become those of ``dask_dgpu.fft``, and with ``sum_method`` other than
    ``"dask"``, ``dask.array.sum`` and ``mean`` add by that method; ``fft_output_layout`` is put
    into ``dask.config``, where each of their calls reads it. The workers
    make their communicator in the background meanwhile. The number of workers is
    that of now as far as predictions go; call it again when that has changed.

    Examples
    --------
    >>> import dask.array as da, dask_dgpu as dgpu
    >>> x = da.ones((4, 6), chunks=2)
    >>> with dgpu.enable(local_ranks=3, when="always"):
    ...     (x @ x.T).sum().compute(scheduler="threads").item()
    96.0
    """
    if MISSING:
        raise DgpuError(f"expected a dask with {' and '.join(MISSING)}, got dask {version('dask')}")
    if dask.array.array_expr_enabled():
        raise DgpuError(
            "expected array.query-planning to be false, got true: "
            "that engine has neither matmul nor FFT"
        )
    read_settings = read(settings)
    client = current_client() if client is None else client
    if client is not None:
        check_client("client", client)
    facts = gather(client, read_settings)
    _note_missing(client, facts.workers)
    optimizer = GraphOptimizer(read_settings, facts)
    if client is not None:
        from dask_dgpu.runtime.scheduler.plugin import GangSchedulerPlugin

        client.register_plugin(GangSchedulerPlugin(facts.device))
        _warm_up(client, optimizer)
    array_creation_dispatch.register_backend("dgpu", array_backend())
    before = {OPTIMIZE: dask.config.get(OPTIMIZE, None)}
    dask.config.set({OPTIMIZE: optimizer})
    if "fft_output_layout" in settings:
        before[FFT_LAYOUT] = fft_output_layout()
        dask.config.set({FFT_LAYOUT: settings["fft_output_layout"]})
    setattr(Array, TO_DELAYED, plain_to_delayed(Array.to_delayed))
    fft_functions.install()
    sum_functions.install(read_settings.sum_method)
    return Enabled(optimizer, before)


def disable() -> None:
    """Leave every graph to Dask again.

    Workers keep their plugin and their communicators for a next time. An
    ``array_optimize`` that was set before is not restored; the ``with`` form of
    :func:`enable` does that.
    """
    _restore({OPTIMIZE: None})


def start(
    n_workers: int | None = None,
    *,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    **cluster_kwargs: Any,
) -> Client:
    """Start a cluster on this machine, connect to it and enable dask_dgpu.

    Parameters
    ----------
    n_workers : int, optional
        Workers, one rank each; by default one a GPU, or one a core. No more than
        there are GPUs, where they are used.
    device : {"auto", "cpu", "cuda"}, optional
        ``"cuda"`` starts a ``LocalCUDACluster``, whose arrays are born on the GPUs;
        ``"cpu"`` a ``LocalCluster`` with NumPy blocks; ``"auto"`` the first where
        there are GPUs.
    **cluster_kwargs
        Passed on to the cluster. Without GPUs workers have one thread unless
        ``threads_per_worker`` is given here. With GPUs CuPy uses an RMM pool that
        begins with half of the free memory of the GPU that has least, unless an
        ``rmm_*`` argument says otherwise; workers of one host read each other's blocks
        if they have pools.

    Returns
    -------
    distributed.Client
        Closing it closes the cluster and disables dask_dgpu.

    Raises
    ------
    ValueError
        When ``device`` is none of the above, or ``"cuda"`` on a machine without GPUs,
        or ``n_workers`` is more than there are GPUs.
    DgpuError
        When a script calls this outside of ``if __name__ == "__main__":``, a GPU has too
        little free memory, a worker does not start, or ``array.query-planning`` is on.

    See Also
    --------
    enable : Do the same on a cluster that runs already.
    """
    from distributed import Nanny, Worker

    from dask_dgpu.environment.gpus import visible_gpus
    from dask_dgpu.session.startup import (
        check_options,
        cuda_options,
        explained,
        owning_client_class,
        require_workers,
    )

    check_choice("device", device, ("auto", "cpu", "cuda"))
    if n_workers is not None:
        n_workers = integer("n_workers", n_workers, 1)
    if cluster_kwargs.get("asynchronous"):
        raise TypeError("expected asynchronous to be False, got True: start() waits for workers")
    if cluster_kwargs.get("processes", True):
        require_main_guard("dask_dgpu.start()")
    gpus = visible_gpus(cluster_kwargs.get("CUDA_VISIBLE_DEVICES")) if device != "cpu" else ()
    if device == "cuda" and not gpus:
        raise ValueError("expected device to be auto or cpu, got 'cuda': there is no CUDA device")
    if gpus and n_workers is not None and n_workers > len(gpus):
        expected("n_workers", f"{len(gpus)} at most, one a GPU", n_workers)
    gpus = gpus[:n_workers]
    if gpus:
        from dask_cuda import LocalCUDACluster as ClusterType

        options = cuda_options(gpus, cluster_kwargs)
    else:
        from distributed import LocalCluster as ClusterType

        options = {"threads_per_worker": 1, "dashboard_address": ":0", **cluster_kwargs}
    check_options(options, ClusterType, Nanny, Worker)
    with explained(gpus) as errors:
        cluster = ClusterType(n_workers=n_workers, **options)
        client = owning_client_class()(cluster)
        try:
            require_workers(client, cluster.plan, gpus, errors)
            enable(client, device="cuda" if gpus else "cpu")
            client.undo = partial(_end, dask.config.get(BACKEND, None) if gpus else None)
        except BaseException:
            client.close()
            raise
    if gpus:
        dask.config.set({BACKEND: "dgpu"})
    return client


def _end(backend_before: str | None) -> None:
    """Undo what :func:`start` has set."""
    disable()
    if backend_before is not None:
        dask.config.set({BACKEND: backend_before})


def _restore(before: Mapping[str, Any]) -> None:
    if before[OPTIMIZE] is None:
        # Dask takes a value of None for "do not optimize", so the key must go
        dask.config.config.pop(OPTIMIZE, None)
    dask.config.set({name: value for name, value in before.items() if value is not None})
    if isinstance(before[OPTIMIZE], GraphOptimizer):
        sum_functions.install(before[OPTIMIZE].settings.sum_method)
    else:
        original: Callable[..., Any] = Array.to_delayed
        setattr(Array, TO_DELAYED, getattr(original, "__wrapped__", original))
        fft_functions.uninstall()
        sum_functions.uninstall()


def _note_missing(client: Client | None, workers: int) -> None:
    """Log a line if the cluster of a client has asked for more workers than there are."""
    asked = len(getattr(getattr(client, "cluster", None), "plan", ()))
    if workers < asked:
        logger.warning(
            "%d of the %d workers that the cluster asked for are there; "
            "call dask_dgpu.enable(client) again when there are more",
            workers,
            asked,
        )


def _warm_up(client: Client, optimizer: GraphOptimizer) -> None:
    """Ask for the communicator of all workers; the scheduler does not wait for it.

    Workers without memory to spare are left alone: connecting loads torch.
    """
    scheduler: Any = client.scheduler
    device, settings = optimizer.facts.device, optimizer.settings
    there: str = client.sync(
        scheduler.dgpu_warm_up,
        device=device,
        transport=optimizer.transport,
        timeout=settings.limits.timeout,
        connect=usable(optimizer.facts, settings) != 0,
    )
    if there != device:
        raise DgpuError(
            f"setting dgpu.device is {settings.device!r}, which is {device!r} here, but this "
            f"cluster was enabled with {there!r}, which it keeps until it is started again"
        )
