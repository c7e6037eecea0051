"""Starting and ending the workers of this machine, and saying which did not start, and why."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

from dask.typing import no_default

from dask_dgpu.arguments import suggestion
from dask_dgpu.environment.gpus import GpuMemory, pool_bytes, read_memory
from dask_dgpu.errors import DgpuError

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)

LATE_SECONDS = 30.0
"""How long workers may be missing once the cluster says that it has started."""

CLOSING = "60s"
"""How long a client waits for itself to close, and then for its cluster."""

VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)

INTERVAL = 0.1
"""Seconds between two looks."""

DEFAULT_POOL = 0.5
"""Share of all memory that a pool begins with if it is not known what is free."""


def cuda_options(gpus: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a ``LocalCUDACluster`` of one worker a GPU.

    Parameters
    ----------
    gpus : sequence of str
        Numbers or UUIDs.
    options : mapping of str to value
        The user's. Any ``rmm_*`` among them stays as it is.

    Raises
    ------
    DgpuError
        When a GPU has too little free memory for a worker.
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
    """Raise if an option of a cluster is known to none of some classes and their bases.

    Clusters pass on what they do not know to their workers, each of which fails.
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
            raise TypeError(f"unknown argument {name!r}{suggestion(name, sorted(known))}")


@contextmanager
def explained(gpus: Sequence[str]) -> Iterator[list[str]]:
    """Collect what nannies say of workers that do not start.

    An error that ends the start becomes a :class:`DgpuError` that says what each GPU has.

    Yields
    ------
    list of str
        The errors so far.
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
    """Raise if one of the workers of these names is missing.

    Raises
    ------
    DgpuError
        It says which worker, on which GPU, and why, as far as that is known.
    """
    wanted = set(map(str, names))
    deadline = time.monotonic() + patience
    while missing := wanted - _names(client):
        if time.monotonic() > deadline:
            raise DgpuError(missing_text(missing, len(wanted), gpus, errors))
        time.sleep(INTERVAL)


def owning_client_class() -> Any:
    """Return the class of client that :func:`dask_dgpu.start` makes."""
    from distributed import Client

    class OwningClient(Client):
        """A client whose end is that of its cluster, and undoes what was set with it.

        A slow end is no error: it may follow results that nobody wants to lose.
        """

        undo: Callable[[], None] | None = None

        def close(self, timeout: Any = no_default) -> None:
            limit = CLOSING if timeout is no_default else timeout
            cluster: Any = self.cluster
            try:
                for what, end in (("client", super().close), ("cluster", cluster.close)):
                    try:
                        end(timeout=limit)
                    except TimeoutError:
                        logger.warning("the %s is not closed after %s", what, limit)
            finally:
                self._undo()

        async def _close(self, fast: bool = False) -> None:
            try:
                await super()._close(fast=fast)
            finally:
                self._undo()

        def _undo(self) -> None:
            undo, self.undo = self.undo, None
            if undo is not None:
                undo()

    return OwningClient


def missing_text(
    missing: Collection[str], wanted: int, gpus: Sequence[str], errors: Sequence[str]
) -> str:
    """Say which workers did not start, and why.

    Parameters
    ----------
    missing : collection of str
        Their names; dask-cuda calls a worker as its GPU.
    wanted : int
        How many workers there should be.
    gpus : sequence of str
        The GPUs of all workers, if they have any.
    errors : sequence of str
        What was logged meanwhile.
    """
    names = sorted(missing)
    what = "on GPU " if gpus else ""
    text = f"{len(names)} of {wanted} workers did not start: {what}{', '.join(names)}"
    if errors:
        text += f" ({'; '.join(dict.fromkeys(errors))})"
    lost: list[GpuMemory] = []
    with suppress(Exception):  # the list of GPUs is more than the driver may tell
        lost = read_memory([name for name in names if name in gpus])
    return text + _free(lost)


def _free(memories: Sequence[GpuMemory]) -> str:
    return f"; {' and '.join(map(str, memories))} now" if memories else ""


def _names(client: Client) -> set[str]:
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    return {str(worker["name"]) for worker in workers}


class _Errors(logging.Handler):
    """Keeps the errors of log records."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.errors: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep an error."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            self.errors.append(f"{type(error).__name__}: {error}")
