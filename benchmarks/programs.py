"""Thirty-three programs that people write with array libraries, each for any namespace.

A function takes a namespace (``dask.array``, ``numpy``, ``cupy``) and its inputs.
"""

from __future__ import annotations

from typing import Any

ITERATIONS = 10

# statistics


def covariance(xp: Any, x: Any) -> Any:
    """Return the covariance of columns."""
    y = x - x.mean(axis=0)
    return y.T @ y / (x.shape[0] - 1)


def standardise(xp: Any, x: Any) -> Any:
    """Return columns with mean 0 and standard deviation 1."""
    return (x - x.mean(axis=0)) / x.std(axis=0)


def correlation(xp: Any, x: Any) -> Any:
    """Return the correlation of columns."""
    return xp.corrcoef(x.T)


def moments(xp: Any, x: Any) -> Any:
    """Return the second, third and fourth central moment."""
    y = x - x.mean()
    return xp.stack([(y**k).mean() for k in (2, 3, 4)])


def min_max_scale(xp: Any, x: Any) -> Any:
    """Return columns scaled to the range from 0 to 1."""
    low, high = x.min(axis=0), x.max(axis=0)
    return (x - low) / (high - low)


def histogram(xp: Any, x: Any) -> Any:
    """Return the counts of 64 equal bins."""
    return xp.histogram(x, bins=64, range=(0, 1))[0]


def argmax_accuracy(xp: Any, x: Any) -> Any:
    """Return the fraction of rows with the largest number in the same place as the smallest."""
    return (x.argmax(axis=1) == x.argmin(axis=1)).mean()


def anomaly(xp: Any, x: Any) -> Any:
    """Return how far each day is from the mean of its place, in standard deviations."""
    y = x - x.mean(axis=1, keepdims=True)
    return y / (y.std(axis=1, keepdims=True) + 1e-3)


# elementwise chains and operations on rows


def gelu(xp: Any, x: Any) -> Any:
    """Return the activation GELU, by its approximation with tanh."""
    return 0.5 * x * (1 + xp.tanh(0.79788456 * (x + 0.044715 * x * x * x)))


def weighted_sum(xp: Any, x: Any, w: Any) -> Any:
    """Return the sums of rows, with weights for columns."""
    return (x * w).sum(axis=-1)


def softmax(xp: Any, x: Any) -> Any:
    """Return the softmax of rows."""
    e = xp.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def layer_norm(xp: Any, x: Any, gain: Any, bias: Any) -> Any:
    """Return normalised rows, with a gain and a bias for columns."""
    c = x - x.mean(axis=1, keepdims=True)
    return c / xp.sqrt((c * c).mean(axis=1, keepdims=True) + 1e-5) * gain + bias


def black_scholes(xp: Any, spot: Any, strike: Any, time: Any) -> Any:
    """Return the prices of call options."""
    root = 0.3 * xp.sqrt(time)
    d = (xp.log(spot / strike) + (0.02 + 0.045) * time) / root
    discount = xp.exp(-0.02 * time)
    return spot * _normal_cdf(xp, d) - strike * discount * _normal_cdf(xp, d - root)


def _normal_cdf(xp: Any, d: Any) -> Any:
    q = 1 / (1 + 0.2316419 * abs(d))
    terms = -1.821255978 + q * 1.330274429
    for coefficient in (1.781477937, -0.356563782, 0.31938153):
        terms = coefficient + q * terms
    tail = 0.39894228 * xp.exp(-0.5 * d * d) * q * terms
    return xp.where(d > 0, 1 - tail, tail)


def kmeans_step(xp: Any, x: Any, centres: Any) -> Any:
    """Return the nearest centre of each row."""
    return ((x[:, None, :] - centres[None, :, :]) ** 2).sum(axis=-1).argmin(axis=1)


# iterations: one computation of the whole loop


def linear_regression(xp: Any, x: Any, y: Any) -> Any:
    """Return the weights after ten steps of gradient descent."""
    w = xp.zeros(x.shape[1], dtype=x.dtype)
    for _ in range(ITERATIONS):
        w = w - 0.1 / x.shape[0] * (x.T @ (x @ w - y))
    return w


def logistic_regression(xp: Any, x: Any, y: Any) -> Any:
    """Return the weights after ten steps of gradient descent."""
    w = xp.zeros(x.shape[1], dtype=x.dtype)
    for _ in range(ITERATIONS):
        w = w - 0.1 / x.shape[0] * (x.T @ (1 / (1 + xp.exp(-(x @ w))) - y))
    return w


def power_iteration(xp: Any, a: Any, v: Any) -> Any:
    """Return an approximation of the dominant eigenvector."""
    for _ in range(ITERATIONS):
        v = a @ v
        v = v / xp.sqrt((v * v).sum())
    return v


def conjugate_gradient(xp: Any, a: Any, b: Any) -> Any:
    """Return the solution of a symmetric system after ten steps."""
    symmetric = (a + a.T) * (0.5 / a.shape[0])
    x = xp.zeros_like(b)
    p = r = b
    square = (r * r).sum()
    for _ in range(ITERATIONS):
        q = p + symmetric @ p
        step = square / (p * q).sum()
        x, r = x + step * p, r - step * q
        before, square = square, (r * r).sum()
        p = r + (square / before) * p
    return x


def sinkhorn(xp: Any, cost: Any, a: Any, b: Any) -> Any:
    """Return the transport of masses, with entropy, after ten scalings (Cuturi 2013)."""
    a, b = a / a.sum(), b / b.sum()
    kernel = xp.exp(-10 * cost)
    u = xp.ones_like(a)
    for _ in range(ITERATIONS):
        v = b / (kernel.T @ u)
        u = a / (kernel @ v)
    return u[:, None] * kernel * v[None, :]


def nonnegative_factors(xp: Any, x: Any, w: Any, h: Any) -> tuple[Any, Any]:
    """Return nonnegative factors after ten multiplicative updates (Lee and Seung 2001)."""
    for _ in range(ITERATIONS):
        h = h * (w.T @ x) / (w.T @ w @ h + 1e-6)
        w = w * (x @ h.T) / (w @ (h @ h.T) + 1e-6)
    return w, h


# linear algebra and contractions


def add_transpose(xp: Any, x: Any) -> Any:
    """Return the sum of a matrix and its transpose."""
    return x + x.T


def shifted_difference(xp: Any, a: Any, b: Any) -> Any:
    """Return the difference of two matrices, one row and one column apart."""
    return a[1:, 1:] - b[:-1, :-1]


def product_add_normalise(xp: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a product plus a matrix, with norm 1."""
    d = a @ b + c
    return d / xp.sqrt((d * d).sum())


def einsum_product(xp: Any, a: Any, b: Any) -> Any:
    """Return a product, by einsum."""
    return xp.einsum("ij,jk->ik", a, b)


def tensordot(xp: Any, a: Any, b: Any) -> Any:
    """Return a contraction over two axes."""
    return xp.tensordot(a, b, axes=((1, 2), (0, 1)))


def batched_product(xp: Any, a: Any, b: Any) -> Any:
    """Return the products of two stacks of matrices."""
    return a @ b


def normal_equations(xp: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Return the matrix and the right side of a least-squares problem."""
    return x.T @ x, x.T @ y


def tall_qr(xp: Any, x: Any) -> Any:
    """Return the absolute triangular factor of a tall matrix."""
    return abs(xp.linalg.qr(x)[1])


# spectra, images and fields


def power_spectrum(xp: Any, x: Any) -> Any:
    """Return the mean power spectrum of many signals."""
    return (abs(xp.fft.rfft(x, axis=1)) ** 2).mean(axis=0)


def low_pass(xp: Any, x: Any) -> Any:
    """Return a smoothed image, filtered in the spectrum."""
    k = xp.fft.fftfreq(x.shape[0]).astype(x.dtype)
    smooth = xp.exp(-50 * (k[:, None] ** 2 + k[None, :] ** 2))
    return xp.fft.ifft2(xp.fft.fft2(x) * smooth).real


def gradient_magnitude(xp: Any, x: Any) -> Any:
    """Return the length of the gradient inside of an image."""
    gx = x[2:, 1:-1] - x[:-2, 1:-1]
    gy = x[1:-1, 2:] - x[1:-1, :-2]
    return xp.sqrt(gx * gx + gy * gy)


def running_sum(xp: Any, x: Any) -> Any:
    """Return the cumulative sums of columns."""
    return x.cumsum(axis=0)


def gray_scott(xp: Any, u: Any, v: Any) -> tuple[Any, Any]:
    """Return two concentrations after one step of reaction and diffusion, on a torus."""
    reaction = u * v * v
    fed = 0.035 * (1 - u) - reaction
    return u + 0.16 * _laplacian(xp, u) + fed, v + 0.08 * _laplacian(xp, v) + reaction - 0.1 * v


def _laplacian(xp: Any, x: Any) -> Any:
    shifts = ((1, 0), (-1, 0), (1, 1), (-1, 1))
    return sum(xp.roll(x, shift, axis) for shift, axis in shifts) - 4 * x
