"""The devices of all workers: their memory, and how busy they are."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from dask_dgpu.arguments import check_flag, positive
from dask_dgpu.cost.table import BLUE, ORANGE, Cell, Rows, Shown, quantity
from dask_dgpu.environment.devices import CUDA, Device, read_device
from dask_dgpu.environment.facts import ALONE, chosen_client, usable
from dask_dgpu.environment.settings import read
from dask_dgpu.optimizer import enabled_optimizer

if TYPE_CHECKING:
    from distributed import Client

HERE = "this process"
HEADINGS = ("worker", "device", "memory", "total", "used", "others", "free", "safe")
MORE = ("pool", "busy", "degrees", "NVLink")


@dataclass(frozen=True, repr=False)
class GpuStatus(Shown):
    """The device of each worker.

    Parameters
    ----------
    devices : dict of str to Device
        The device of each worker, by its address.
    safe : dict of str to int or None
        The bytes that a gang may use under the settings, ``None`` for no limit.

    Notes
    -----
    It prints as a table. In the bars ``#`` stands for this worker, ``x`` for other processes.
    A notebook displays blue and orange bars.
    """

    devices: dict[str, Device]
    safe: dict[str, int | None]

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return everything as plain values.

        Returns
        -------
        dict
            For each worker the fields of its device, and ``"safe"``: the bytes that a gang may
            use under the settings. Bytes, percent and degrees Celsius; ``None`` if not known.
        """
        return {
            worker: asdict(device) | {"safe": self.safe[worker]}
            for worker, device in self.devices.items()
        }

    def _rows(self) -> Rows:
        gpus = any(device.kind == CUDA for device in self.devices.values())
        rows = []
        for worker, device in self.devices.items():
            used, others = _shares(device)
            bar = Cell(bar={BLUE: used, ORANGE: others}, tip=f"{used:.0%} used here")
            safe = self.safe[worker]
            known = device.total, device.used, device.others, device.free
            sizes = [quantity(each, "B") for each in known]
            sizes.append("no limit" if safe is None else quantity(safe, "B"))
            more = [quantity(device.pool, "B"), _with(device.utilisation, "%")]
            more += [_with(device.temperature, "C"), ", ".join(device.peers)]
            rows.append([worker, device.name, bar, *sizes, *(more if gpus else ())])
        headings = [*HEADINGS, *(MORE if gpus else ())]
        return Rows("", headings, rows, 160, 3, dense=True, name="dgpu-status")


def gpu_status(
    client: Client | None = None, *, live: bool = False, interval: float = 1.0
) -> GpuStatus:
    """Show the device of each worker: its memory, who uses it, and how busy it is.

    Parameters
    ----------
    client : distributed.Client, optional
        The cluster; by default that of the current client. Without a client, it is the device of
        this process.
    live : bool, optional
        Whether to draw the table again and again, until you interrupt it.
    interval : float, optional
        Seconds between two drawings.

    Returns
    -------
    GpuStatus
        The last status. It prints and displays as a table with bars.

    Raises
    ------
    TypeError
        If ``client`` is no client, or an asynchronous one, ``live`` no bool, or ``interval`` no
        number.
    ValueError
        If ``client`` is closed, or ``interval`` is not positive and finite.

    See Also
    --------
    check_health : Check whether every worker can take part in gangs.

    Notes
    -----
    GPUs are asked by NVML, as ``nvidia-smi`` does; this creates no CUDA context. Of workers without
    a GPU it is the memory of the host, up to the limit of the worker. In containers the driver may
    not say which process is the worker: then ``used`` and ``others`` are empty.

    Examples
    --------
    >>> import dask_dgpu as dgpu
    >>> list(dgpu.gpu_status().devices)
    ['this process']
    """
    check_flag("live", live)
    interval = positive("interval", interval)
    client = chosen_client(client)
    status = _status(client)
    if live:
        with Live(console=Console(), auto_refresh=False) as table, suppress(KeyboardInterrupt):
            while True:
                table.update(Text(str(status), no_wrap=True), refresh=True)
                time.sleep(interval)
                status = _status(client)
    return status


def _status(client: Client | None) -> GpuStatus:
    optimizer = enabled_optimizer()
    settings = read() if optimizer is None else optimizer.settings
    answers = {HERE: read_device()} if client is None else client.run(read_device)
    devices = dict(sorted(answers.items()))
    most = {
        worker: usable(replace(ALONE, device_memory=device.blocks), settings)
        for worker, device in devices.items()
    }
    safe = {worker: None if nbytes is None else int(nbytes) for worker, nbytes in most.items()}
    return GpuStatus(devices, safe)


def _shares(device: Device) -> tuple[float, float]:
    """Return the shares of a device that this worker uses, and that others use."""
    total = max(1, device.total)
    if device.used is None:
        return 0.0, 1 - device.free / total
    return device.used / total, (device.others or 0) / total


def _with(value: int | None, unit: str) -> str:
    return "" if value is None else f"{value} {unit}"
