"""Compilation of generated kernels by NVRTC, with a cache on disk that the host's workers share.

CuPy compiles with ``-ftz=true``, which flushes subnormal numbers to zero, and adds the option after
all others. So the compiler is called here. A product and a sum are not contracted to one rounding
(``-fmad=false``): results are NumPy's, and kernels that read memory are as fast.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import cupy

OPTIONS = ("-std=c++17", "-fmad=false", "-w")
MOST_KERNELS = 1024


@lru_cache(maxsize=MOST_KERNELS)
def kernel(source: str, name: str) -> Any:
    """Return a kernel of some source for the current device."""
    return cupy.RawModule(
        path=str(_compiled(source, cupy.cuda.Device().compute_capability))
    ).get_function(name)


def _compiled(source: str, arch: str) -> Path:
    """Return the file of the code; compile it unless some process of this host has."""
    from cupy.cuda import compiler

    version = cupy.cuda.nvrtc.getVersion()
    digest = hashlib.sha256(repr((source, arch, version, OPTIONS)).encode()).hexdigest()
    folder = Path(os.environ.get("CUPY_CACHE_DIR", Path.home() / ".cupy" / "kernel_cache"))
    path = folder / f"dgpu_{digest}.cubin"
    if not path.exists():
        code, _ = compiler.compile_using_nvrtc(source, OPTIONS, arch)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(code)
        Path(file.name).replace(path)
    return path
