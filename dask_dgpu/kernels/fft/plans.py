"""Ready plans of cuFFT: each is complete when it is created.

A plan copies the address of its twiddle factors to the device on the legacy stream, whatever
CuPy's current stream is (https://github.com/cupy/cupy/issues/7928), and the host does not wait
for the copy. The lanes of a program do not wait for the legacy stream: on GPUs shared by several
processes, transforms started too early and read at address zero.

CuPy has no hook for the creation of plans, which also happens in the ``cupy.fft`` of a user's
block function. So its two classes of plans are replaced.
"""

from __future__ import annotations

from typing import Any

import cupy
from cupy.cuda import cufft

KINDS = "Plan1d", "PlanNd"


class Ready(type):
    """A replacement for a class of plans; ``isinstance`` accepts the original's objects."""

    kind: Any

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Create a plan, and wait until all of it is on the device."""
        plan = cls.kind(*args, **kwargs)
        # cheap: the creation of a plan waits for all earlier work on the device anyway
        cupy.cuda.Stream.null.synchronize()
        return plan

    def __instancecheck__(cls, plan: Any) -> bool:
        return isinstance(plan, cls.kind)


def wait_for_plans() -> None:
    """Let CuPy return plans of this process only when they are ready."""
    for name in KINDS:
        kind = getattr(cufft, name)
        if not isinstance(kind, Ready):
            setattr(cufft, name, Ready(name, (), {"kind": kind}))
