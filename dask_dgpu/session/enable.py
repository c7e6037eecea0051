"""Enabling and disabling dask_dgpu."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from inspect import signature
from typing import TYPE_CHECKING, Any, Unpack

import dask
import dask.array
from dask.array.backends import array_creation_dispatch

from dask_dgpu.array.fft.call import FFT_LAYOUT
from dask_dgpu.environment.facts import chosen_client, gather, usable
from dask_dgpu.environment.settings import Keywords, keywords, read
from dask_dgpu.errors import DgpuError
from dask_dgpu.optimizer import GraphOptimizer
from dask_dgpu.runtime.installed import check_installed
from dask_dgpu.session import hooks
from dask_dgpu.session.backend import array_backend
from graph_opt.dask_graph.internals import MISSING

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)

OPTIMIZE = "array_optimize"
OWN_LAYOUT = "dask_dgpu_own_layout"
"""The user's ``dgpu.fft.output-layout``, in Dask's configuration while a keyword replaces it."""


@dataclass(frozen=True, repr=False)
class Enabled:
    """The result of :func:`enable`, a context manager that restores the previous state.

    Parameters
    ----------
    optimizer : GraphOptimizer
        Dask calls it on array graphs.
    before : mapping of str to value
        Dask's configuration before, restored at the end of a ``with`` block.
    """

    optimizer: GraphOptimizer
    before: Mapping[str, Any]

    def __enter__(self) -> Enabled:
        """Return itself; dask_dgpu is already enabled."""
        return self

    def __exit__(self, *error: object) -> None:
        """Restore the previous state."""
        self.restore()

    def restore(self) -> None:
        """Restore the previous state."""
        _restore(self.before)

    @property
    def is_current(self) -> bool:
        """Whether this, or another call for the same cluster, is what is enabled now."""
        now = dask.config.get(OPTIMIZE, None)
        scheduler = self.optimizer.facts.scheduler
        return isinstance(now, GraphOptimizer) and now.facts.scheduler == scheduler

    def __repr__(self) -> str:
        """Return one line: notebooks show it below the call."""
        facts = self.optimizer.facts
        if not facts.workers:
            return "<Enabled: in this process>"
        workers = "worker" if facts.workers == 1 else "workers"
        return f"<Enabled: {facts.workers} {workers}, {facts.device}, {self.optimizer.transport}>"


def enable(client: Client | None = None, **settings: Unpack[Keywords]) -> Enabled:
    """Use gangs to compute Dask arrays from now on, where they are quicker.

    Parameters
    ----------
    client : distributed.Client, optional
        The cluster whose workers form gangs; by default the current client, if there is
        one. Without a client, gangs run in this process.
    device : str, optional
        ``"auto"``, ``"cpu"`` or ``"cuda"``.
    comm_transport : str, optional
        ``"auto"``, ``"dask"``, ``"nccl"``, ``"tcp"`` or ``"ucx"``. ``comm`` is short for it.
    comm_plaintext : bool, optional
        Whether blocks may travel in plain text on a cluster with TLS, over NCCL, TCP or UCX.
    comm_ports : str, optional
        The ports that workers may listen on, as ``"30000-30100"``.
    when, on_error : str, optional
        ``"cheaper"`` or ``"always"``; ``"fallback"`` or ``"raise"``.
    regions, fuse : bool, optional
        Whether gangs run Dask's work between collectives, and whether kernels do the work of
        several layers.
    local_ranks : int, optional
        Ranks of a gang without a cluster.
    fft_output_layout : str, optional
        ``"any"`` or ``"input"``.
    cost_measure : bool, optional
        Whether the cluster is measured, for predictions.
    matmul_wire_dtype, sum_method : str, optional
        ``"exact"``, ``"float16"`` or ``"bfloat16"``; ``"dask"``, ``"compensated"`` or
        ``"reproducible"``.
    gang_timeout, gang_grace : str or float, optional
        Seconds, as ``"30s"``: without progress, and for news of a lost worker.
    gang_restarts : int, optional
        Restarts of a gang after the loss of a worker.
    gang_kept_programs, gang_kept_recordings, memory_limit : str or int, optional
        Bytes, as ``"4 GiB"``: of programs and of recordings that a rank keeps, and of one device.
    memory_safety_margin : float, optional
        Fraction of the limit that gangs do not use.
    memory_cap : str or int, optional
        Most bytes of one device to use.

    Returns
    -------
    Enabled
        A context manager that restores the previous state.

    Raises
    ------
    ValueError
        If a setting is unknown or not allowed, ``device`` is ``"cuda"`` and no worker has a
        CUDA device, or a worker lacks the transport. Without a client, this
        applies to this process.
    TypeError
        If ``client`` is no client, or an asynchronous one.
    DgpuError
        If Dask lacks an internal that the rules need; if ``array.query-planning`` is on, an
        engine without matmul and FFT; if the scheduler or a worker has no dask_dgpu or another
        version; if the cluster has no worker for half a minute; or if it was enabled with
        another device before.

    See Also
    --------
    start : Start a cluster on this machine, and enable.
    explain : Show the gangs of an array, and the reasons for the rest.

    Notes
    -----
    It applies to all clients of this process, and to graphs computed from now on. Another
    call replaces the settings. A setting that is not passed is that of ``dgpu.*`` in
    ``dask.config``, by default the one in the signature.

    The functions of ``dask.array.fft`` become those of ``dask_dgpu.fft``. With a
    ``sum_method`` other than ``"dask"``, ``dask.array.sum`` and ``mean`` use that method, and
    with a ``matmul_wire_dtype`` products are those of :func:`matmul` with this ``wire_dtype``: both
    settings change values, so they apply to arrays that are built from now on, under other keys.
    ``fft_output_layout`` is set in ``dask.config``, where each transform reads it.

    Workers connect in the background. Predictions use the current number of workers; call
    it again after that has changed.

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
            "expected array.query-planning to be False, got True: "
            "that engine has neither matmul nor FFT"
        )
    own = dask.config.get(OWN_LAYOUT, None)  # what the keyword of an earlier call replaced
    read_settings = read(settings if own is None else {"fft_output_layout": own, **settings})
    client = chosen_client(client)
    if client is not None:
        check_installed(client)
    facts = gather(client, read_settings)
    _warn_missing(client, facts.workers)
    optimizer = GraphOptimizer(read_settings, facts)
    if client is not None:
        from dask_dgpu.runtime.scheduler.plugin import GangSchedulerPlugin

        client.register_plugin(GangSchedulerPlugin(facts.device))
        _warm_up(client, optimizer)
    array_creation_dispatch.register_backend("dgpu", array_backend())
    before = {OPTIMIZE: dask.config.get(OPTIMIZE, None)}
    now: dict[str, Any] = {OPTIMIZE: optimizer}
    if "fft_output_layout" in settings or own is not None:
        before |= {FFT_LAYOUT: dask.config.get(FFT_LAYOUT, "any"), OWN_LAYOUT: own}
        now[FFT_LAYOUT] = read_settings.fft_output_layout
        now[OWN_LAYOUT] = (own or before[FFT_LAYOUT]) if "fft_output_layout" in settings else None
    _configure(now)
    hooks.install(read_settings)
    return Enabled(optimizer, before)


# the settings are those of dgpu.yaml, and editors show this signature
_client, _ = signature(enable).parameters.values()
_signature = signature(enable).replace(parameters=[_client, *keywords()])
enable.__signature__ = _signature  # type: ignore[attr-defined]


def disable() -> None:
    """Leave every graph to Dask again.

    Workers keep their plugin and their communicators for the next time. Only the ``with``
    form of :func:`enable` restores an earlier ``array_optimize``.
    """
    before = {OPTIMIZE: None, OWN_LAYOUT: None}
    own = dask.config.get(OWN_LAYOUT, None)
    _restore(before if own is None else before | {FFT_LAYOUT: own})


def _restore(before: Mapping[str, Any]) -> None:
    _configure(before)
    if isinstance(before[OPTIMIZE], GraphOptimizer):
        hooks.install(before[OPTIMIZE].settings)
    else:
        hooks.uninstall()


def _configure(values: Mapping[str, Any]) -> None:
    """Set values of Dask's configuration; ``None`` removes a key."""
    for name, value in values.items():
        if value is None:  # Dask takes it for "do not optimize"
            dask.config.config.pop(name, None)
        else:
            dask.config.set({name: value})


def _warn_missing(client: Client | None, workers: int) -> None:
    """Log a warning if the cluster of a client has fewer workers than it requested."""
    requested = len(getattr(getattr(client, "cluster", None), "plan", ()))
    if workers < requested:
        logger.warning(
            "%d of %d requested workers are available; "
            "call dask_dgpu.enable(client) again when there are more",
            workers,
            requested,
        )


def _warm_up(client: Client, optimizer: GraphOptimizer) -> None:
    """Start to connect all workers, without waiting for the connection.

    Workers without free memory do not connect: measurements need some.
    """
    scheduler: Any = client.scheduler
    device, settings = optimizer.facts.device, optimizer.settings
    current: str = client.sync(
        scheduler.dgpu_warm_up,
        device=device,
        transport=optimizer.transport,
        timeout=settings.limits.timeout,
        ports=settings.limits.ports,
        connect=usable(optimizer.facts, settings) != 0,
        kind=optimizer.facts.kind if settings.cost_measure else None,
    )
    if current != device:
        raise DgpuError(
            f"expected setting dgpu.device to be {current!r}, got {settings.device!r}, which is "
            f"{device!r} here: this cluster keeps {current!r} until it is started again"
        )
