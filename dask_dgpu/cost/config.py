"""The measured rates of a cluster."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from dask_dgpu.arguments import check_flag, expected
from dask_dgpu.cost.table import Rows, Shown, quantity
from dask_dgpu.environment.facts import ClusterFacts, chosen_client, gather
from dask_dgpu.environment.settings import Settings, read
from dask_dgpu.errors import DgpuError
from dask_dgpu.optimizer import enabled_optimizer
from graph_opt.model.cost import FIGURES, Machine

if TYPE_CHECKING:
    from distributed import Client

UNITS = {"bandwidth": "B/s", "seconds": "s", "latency": "s"}
"""The unit of a figure, by the end of its name."""


@dataclass(frozen=True)
class ClusterConfig(Shown):
    """The rates of a cluster's workers, which predict the time of a gang and of plain Dask.

    Parameters
    ----------
    facts : ClusterFacts
        Number of workers, device, hardware, transport, protocol, and the measured figures.

    Notes
    -----
    Figures are those of the slowest worker while all work at the same time. It prints a table of
    all figures, with those that are defaults because they were not measured.
    """

    facts: ClusterFacts

    def __post_init__(self) -> None:
        if not isinstance(self.facts, ClusterFacts):
            expected("facts", "ClusterFacts, as from detect", self.facts, TypeError)

    @classmethod
    def detect(cls, client: Client | None = None, *, again: bool = False) -> ClusterConfig:
        """Measure a cluster, or return its figures if they are known.

        Parameters
        ----------
        client : distributed.Client, optional
            The cluster; by default the current client's.
        again : bool, optional
            Whether to measure a cluster whose figures are known.

        Returns
        -------
        ClusterConfig
            The figures. The cluster keeps them, and predictions use them from now on.

        Raises
        ------
        TypeError
            If ``client`` is no client, or an asynchronous one.
        DgpuError
            If there is no client.

        Notes
        -----
        It waits until the cluster is idle, and takes about two seconds. :func:`dask_dgpu.enable`
        starts it in the background unless the setting ``dgpu.cost.measure`` is false.

        Every rank measures products (square, tall, with a vector) of each dtype of BLAS, a copy in
        memory, a small exchange and one of large messages. On several hosts, large messages are
        measured within hosts and between them. Tasks
        measure the scheduler's cost of a task, a round trip, and a transfer between workers.
        """
        check_flag("again", again)
        client, facts, settings = _connected(client)
        transport = facts.transport if settings.comm == "auto" else settings.comm
        scheduler: Any = client.scheduler
        figures: dict[str, float] = client.sync(
            scheduler.dgpu_measure,
            again=bool(again),
            kind=facts.kind,
            device=facts.device,
            transport=transport,
            timeout=settings.limits.timeout,
            ports=settings.limits.ports,
        )
        return cls(replace(facts, figures=tuple(figures.items())))

    def use(self, client: Client | None = None) -> None:
        """Let predictions on a cluster use these figures instead of its own.

        Parameters
        ----------
        client : distributed.Client, optional
            The cluster; by default the current client's.

        Raises
        ------
        TypeError
            If ``client`` is no client, or an asynchronous one.
        DgpuError
            If there is no client.
        ValueError
            If the cluster has another kind of device than these figures.
        """
        client, facts, _ = _connected(client)
        if facts.device != self.facts.device:
            expected("client", f"a cluster on device {self.facts.device!r}", facts.device)
        scheduler: Any = client.scheduler
        client.sync(scheduler.dgpu_rates, kind=facts.kind, figures=dict(self.facts.figures))

    @property
    def machine(self) -> Machine:
        """The rates of one worker, measured ones and defaults."""
        return self.facts.machine

    def _rows(self) -> Rows:
        facts, machine = self.facts, self.machine
        rows = []
        further = ["host_bandwidth"] if machine.host_bandwidth is not None else []
        if machine.link_bandwidth is not None:
            further.append("link_bandwidth")
        for name in ("flops", *FIGURES, *further):
            unit = next((unit for end, unit in UNITS.items() if name.endswith(end)), "flop/s")
            value = machine.dask_rate if name == "dask_bandwidth" else getattr(machine, name)
            source = "measured" if name in machine.measured else "default"
            rows.append((name, quantity(value, unit), source))
        for dtype, rates in machine.products:
            for shape, value in asdict(rates).items():
                rows.append((f"{dtype}.{shape}", quantity(value, "flop/s"), "measured"))
        title = f"{facts.hardware or 'unknown hardware'}, {facts.transport}"
        return Rows(title, ("figure", "value", "source"), rows)


def _connected(client: Client | None) -> tuple[Client, ClusterFacts, Settings]:
    """Return the client, and the facts and settings of its cluster, on which gangs can run."""
    client = chosen_client(client)
    if client is None:
        raise DgpuError("expected a client, got none: there is no cluster to measure")
    optimizer = enabled_optimizer()
    scheduler = client.scheduler_info(n_workers=0)["id"]
    if optimizer is not None and optimizer.facts.scheduler == scheduler:
        return client, optimizer.facts, optimizer.settings
    settings = read()
    facts = gather(client, settings)
    from dask_dgpu.runtime.scheduler.plugin import GangSchedulerPlugin

    client.register_plugin(GangSchedulerPlugin(facts.device))
    return client, facts, settings
