"""Plans of cuFFT that are ready when they are made.

A plan copies the address of its twiddle factors to the device on the legacy stream, whatever
CuPy's current stream is (https://github.com/cupy/cupy/issues/7928), and the host goes on
before the copy is there. The lanes of a program do not wait for the legacy stream: on GPUs that
several processes share, transforms were seen to begin first, and to read at address zero.

CuPy makes plans where nobody can step in between, also for the ``cupy.fft`` of a user's block
function. So it gets stand-ins for its two classes of plans, of which it sees nothing else.
"""

from __future__ import annotations

from typing import Any

import cupy
from cupy.cuda import cufft

KINDS = "Plan1d", "PlanNd"


class Ready(type):
    """A class that makes the objects of another, and counts them as its own."""

    kind: Any

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make a plan, and wait until all of it is on the device."""
        plan = cls.kind(*args, **kwargs)
        # cheap beside making a plan, which waits for all that the device was given before
        cupy.cuda.Stream.null.synchronize()
        return plan

    def __instancecheck__(cls, plan: Any) -> bool:
        return isinstance(plan, cls.kind)


def wait_for_plans() -> None:
    """Let all of CuPy's plans in this process be ready when they are made."""
    for name in KINDS:
        kind = getattr(cufft, name)
        if not isinstance(kind, Ready):
            setattr(cufft, name, Ready(name, (), {"kind": kind}))
