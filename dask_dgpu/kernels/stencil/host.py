"""The loops of a sweep in NumPy memory, compiled by Numba."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from dask_dgpu.kernels.compiled import compiled

Array = Any

PART = 2048
"""Approximate number of elements computed at a time; a few such arrays fit the L1 cache."""


@partial(compiled, fastmath={"reassoc"})  # makes sums of several elements independent
def _change(now: Array, before: Array) -> float:
    """Return the sum of the squared differences, in double: they may overflow float32."""
    total = 0.0
    for j in range(len(now)):
        difference = now[j] - before[j]
        real, imag = np.float64(difference.real), np.float64(difference.imag)
        total += real * real + imag * imag
    return total


@compiled
def _sweep_part(
    made: Array, u: Array, given: Array, base: int, offsets: Array, weights: Array, adds: bool
) -> None:
    """Compute a part of a row, four taps at a time."""
    taps, n = len(offsets), len(made)
    at = taps % 4
    if at == 0 and taps:
        a = u[base + offsets[0] : base + offsets[0] + n]
        b = u[base + offsets[1] : base + offsets[1] + n]
        c = u[base + offsets[2] : base + offsets[2] + n]
        d = u[base + offsets[3] : base + offsets[3] + n]
        p, q, r, s = weights[0], weights[1], weights[2], weights[3]
        if adds:
            for j in range(n):
                made[j] = given[j] + p * a[j] + q * b[j] + r * c[j] + s * d[j]
        else:
            for j in range(n):
                made[j] = p * a[j] + q * b[j] + r * c[j] + s * d[j]
        at = 4
    else:
        for j in range(n):
            made[j] = given[j] if adds else 0
        for tap in range(at):
            a = u[base + offsets[tap] : base + offsets[tap] + n]
            p = weights[tap]
            for j in range(n):
                made[j] += p * a[j]
    while at < taps:
        a = u[base + offsets[at] : base + offsets[at] + n]
        b = u[base + offsets[at + 1] : base + offsets[at + 1] + n]
        c = u[base + offsets[at + 2] : base + offsets[at + 2] + n]
        d = u[base + offsets[at + 3] : base + offsets[at + 3] + n]
        p, q, r, s = weights[at], weights[at + 1], weights[at + 2], weights[at + 3]
        for j in range(n):
            made[j] += p * a[j] + q * b[j] + r * c[j] + s * d[j]
        at += 4


@compiled
def _sweep_rows(
    out: Array,
    u: Array,
    added: Array,
    shape: Array,
    edges: Array,
    offsets: Array,
    weights: Array,
    adds: bool,
    measures: bool,
) -> float:
    """Compute a region of ``out`` row by row; return the squared difference from ``u``."""
    ndim = len(shape)
    rows = 1
    for axis in range(ndim - 1):
        rows *= max(0, edges[axis, 1] - edges[axis, 0])
    begin, length = edges[ndim - 1, 0], max(0, edges[ndim - 1, 1] - edges[ndim - 1, 0])
    parts = max(1, (length + PART // 2) // PART)
    total = 0.0
    for row in range(rows):
        rest, base, stride = row, begin, shape[ndim - 1]
        for axis in range(ndim - 2, -1, -1):
            count = edges[axis, 1] - edges[axis, 0]
            base += (edges[axis, 0] + rest % count) * stride
            rest //= count
            stride *= shape[axis]
        for part in range(parts):
            first, last = base + length * part // parts, base + length * (part + 1) // parts
            made, given = out[first:last], added[first:last]
            _sweep_part(made, u, given, first, offsets, weights, adds)
            if measures:
                total += _change(made, u[first:last])
    return total


@compiled
def sweep_bands(
    source: Array,
    target: Array,
    added: Array,
    shape: Array,
    regions: Array,
    thickness: int,
    reach: int,
    offsets: Array,
    weights: Array,
    adds: bool,
    measures: bool,
) -> float:
    """Sweep back and forth between two arrays, in bands along the first axis."""
    sweeps = len(regions)
    start, stop = regions[0, 0, 0], regions[0, 0, 1]
    if sweeps == 1:
        thickness = max(1, stop - start)
    bands = max(1, (stop - start + (sweeps - 1) * reach + thickness - 1) // thickness)
    total = 0.0
    for band in range(bands):
        for sweep in range(sweeps):
            edges = regions[sweep].copy()
            first = start + band * thickness - sweep * reach
            if band > 0:
                edges[0, 0] = max(edges[0, 0], first)
            if band < bands - 1:
                edges[0, 1] = min(edges[0, 1], first + thickness)
            u, out = (source, target) if sweep % 2 == 0 else (target, source)
            last = measures and sweep == sweeps - 1
            total += _sweep_rows(out, u, added, shape, edges, offsets, weights, adds, last)
    return total
