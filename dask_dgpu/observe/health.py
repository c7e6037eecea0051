"""A check whether every worker can be a rank."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dask_dgpu.arguments import check_client, positive
from dask_dgpu.cost.table import GREEN, RED, Cell, Rows, Shown
from dask_dgpu.runtime.installed import Versions, check_scheduler, differences
from dask_dgpu.runtime.tasks import PLUGIN

if TYPE_CHECKING:
    from distributed import Client
    from distributed.scheduler import Scheduler

Answer = tuple[str, Versions]
"""The state of a worker, and its versions of packages if it knows them."""

OK = "ok"

NO_PLUGIN = "has no dask_dgpu plugin; call dask_dgpu.enable(client)"


@dataclass(frozen=True, repr=False)
class Health(Shown):
    """The state of each worker.

    Parameters
    ----------
    workers : dict of str to str
        ``"ok"`` or the problem, by address.
    """

    workers: dict[str, str]

    @property
    def ok(self) -> bool:
        """Whether all workers are ok."""
        return all(state == OK for state in self.workers.values())

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values.

        Returns
        -------
        dict
            ``"ok"``, and ``"workers"``: the state of each by its address.
        """
        return {"ok": self.ok, "workers": dict(self.workers)}

    def __str__(self) -> str:
        """One line per worker."""
        return "\n".join(f"{worker}: {state}" for worker, state in sorted(self.workers.items()))

    def _rows(self) -> Rows:
        bars = {True: Cell(bar={GREEN: 1.0}), False: Cell(bar={RED: 1.0})}
        rows = [(name, bars[state == OK], state) for name, state in sorted(self.workers.items())]
        return Rows("", (), rows, texts=3, name="dgpu-health")


def check_health(client: Client, timeout: float = 10.0) -> Health:
    """Check whether every worker can take part in gangs.

    Parameters
    ----------
    client : distributed.Client
        The cluster.
    timeout : float, optional
        Seconds to wait for the answer of a worker.

    Returns
    -------
    Health
        ``"ok"`` or the problem of each worker: no answer, no plugin, other versions of packages,
        an error of the device, or a wrong result. It prints one line per worker, and displays as a
        table in a notebook.

    Raises
    ------
    TypeError
        If ``client`` is no client, or an asynchronous one, or ``timeout`` no number.
    ValueError
        If ``timeout`` is not positive and finite, or ``client`` is closed.
    DgpuError
        If the scheduler has no dask_dgpu, or another version than the client.

    Notes
    -----
    Each worker multiplies small matrices on its device, and has the client's versions of dask and
    NumPy, and those of CuPy and torch that most workers have. Connections between ranks are not
    tested.

    Examples
    --------
    >>> health = dgpu.check_health(client)  # doctest: +SKIP
    >>> health.ok  # doctest: +SKIP
    True
    """
    check_client("client", client)
    timeout = positive("timeout", timeout)
    check_scheduler(client)
    answers: dict[str, Answer] = client.run_on_scheduler(_ask_all, timeout=timeout)
    states = {worker: state for worker, (state, _) in answers.items()}
    other = differences({worker: each for worker, (_, each) in answers.items() if each})
    problems = {worker: text for worker, text in other.items() if states[worker] == OK}
    return Health(states | problems)


async def _ask_all(timeout: float, dask_scheduler: Scheduler) -> dict[str, Answer]:
    async def ask(address: str) -> Answer:
        try:
            call = dask_scheduler.rpc(address).dgpu_examine()
            state, versions = await asyncio.wait_for(call, timeout)
        except AttributeError:
            return NO_PLUGIN, {}
        except TimeoutError:
            return f"did not answer within {timeout:g} s", {}
        except Exception as error:
            return f"{type(error).__name__}: {error}", {}
        return state, versions

    addresses = list(dask_scheduler.workers)
    if PLUGIN not in dask_scheduler.plugins:  # workers would log a call that they do not know
        return dict.fromkeys(addresses, (NO_PLUGIN, {}))
    return dict(zip(addresses, await asyncio.gather(*map(ask, addresses)), strict=True))
