"""CUDA C++ that all generated kernels share: types, conversions, and NumPy's functions."""

from __future__ import annotations

TYPES = r"""
typedef long long Long;
typedef unsigned long long ULong;
template <class R> struct alignas(2 * sizeof(R)) Complex { R re, im; };
struct Half { unsigned short bits; };  // an element in memory; computed with as float
template <class T, int N> struct alignas(sizeof(T) * N) Vector { T lane[N]; };

template <class T> struct Is { static constexpr bool complex = false, real = false; };
template <> struct Is<float> { static constexpr bool complex = false, real = true; };
template <> struct Is<double> { static constexpr bool complex = false, real = true; };
template <class R> struct Is<Complex<R>> { static constexpr bool complex = true, real = false; };
template <class A, class B> struct Same { static constexpr bool value = false; };
template <class A> struct Same<A, A> { static constexpr bool value = true; };
template <class T> struct Wrapping { typedef unsigned int type; };
template <> struct Wrapping<Long> { typedef ULong type; };
template <> struct Wrapping<ULong> { typedef ULong type; };
template <class T> struct Part { typedef T type; };
template <class R> struct Part<Complex<R>> { typedef R type; };

inline float half_value(unsigned short bits) {
    float x; asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits)); return x;
}
inline unsigned short half_bits(float x) {
    unsigned short bits; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x)); return bits;
}
inline float half_rounded(float x) { return half_value(half_bits(x)); }
inline float half_of_double(double x) {
    unsigned short bits; asm("cvt.rn.f16.f64 %0, %1;" : "=h"(bits) : "d"(x));
    return half_value(bits);
}

template <class T> T loaded(T x) { return x; }
inline float loaded(Half x) { return half_value(x.bits); }
template <class S, class V> S stored(V x) {
    if constexpr (Same<S, Half>::value) return Half{half_bits(x)};
    else return (S) x;
}

// As x86 converts: out of range, small integers wrap.
template <class To, class From> To cast(From x) {
    if constexpr (Is<To>::complex) {
        typedef typename Part<To>::type R;
        if constexpr (Is<From>::complex) return To{(R) x.re, (R) x.im};
        else return To{(R) x, (R) 0};
    } else if constexpr (Is<From>::complex) {
        if constexpr (Same<To, bool>::value) return x.re != 0 || x.im != 0;
        else return cast<To>(x.re);
    } else if constexpr (Same<To, bool>::value) return x != From(0);
    else if constexpr (Is<From>::real && !Is<To>::real && sizeof(To) < 8) return (To) (Long) x;
    else if constexpr (Is<From>::real && Same<To, ULong>::value)
        return x < 0 ? (To) (Long) x : (To) x;
    else return (To) x;
}
"""

ARITHMETIC = r"""
#define WRAPPED(name, op)                                                                   \
    template <class T> T name(T a, T b) {                                                   \
        typedef typename Wrapping<T>::type U; return (T) ((U) a op (U) b);                  \
    }                                                                                       \
    inline float name(float a, float b) { return a op b; }                                  \
    inline double name(double a, double b) { return a op b; }
WRAPPED(np_add, +)
WRAPPED(np_subtract, -)
WRAPPED(np_multiply, *)
inline bool np_add(bool a, bool b) { return a || b; }
inline bool np_multiply(bool a, bool b) { return a && b; }
template <class R> Complex<R> np_add(Complex<R> a, Complex<R> b) {
    return {a.re + b.re, a.im + b.im};
}
template <class R> Complex<R> np_subtract(Complex<R> a, Complex<R> b) {
    return {a.re - b.re, a.im - b.im};
}
template <class R> Complex<R> np_multiply(Complex<R> a, Complex<R> b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
inline double np_divide(double a, double b) { return a / b; }
// Division and square root without branches, which keep the compiler from mixing neighbours. An
// approximation is corrected by its exact remainder: what float represents comes out exactly.
inline float np_divide(float a, float b) {
    // half of the divisor's exponent is taken from both, so that the reciprocal is a normal number
    const float scale = __int_as_float(0x5f000000 - (__float_as_int(b) >> 1 & 0x3f800000));
    a *= scale;
    b *= scale;
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(b));
    const float about = a * inverse, rest = fmaf(-about, b, a);
    return fabs(rest) < fabs(a) ? fmaf(rest, inverse, about) : about;  // 0, inf and NaN as they are
}
inline double np_sqrt(double x) { return sqrt(x); }
inline float np_sqrt(float x) {
    float about, inverse;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(about) : "f"(x));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(about));
    const float rest = fmaf(-about, about, x);
    return fabs(rest) < fabs(x) ? fmaf(rest, 0.5f * inverse, about) : about;
}
template <class R> Complex<R> np_divide(Complex<R> a, Complex<R> b) {  // Smith's, as NumPy
    const R re = fabs(b.re), im = fabs(b.im);
    if (re >= im) {
        if (re == 0 && im == 0) return {a.re / re, a.im / re};
        const R ratio = b.im / b.re, scale = 1 / (b.re + b.im * ratio);
        return {(a.re + a.im * ratio) * scale, (a.im - a.re * ratio) * scale};
    }
    const R ratio = b.re / b.im, scale = 1 / (b.im + b.re * ratio);
    return {(a.re * ratio + a.im) * scale, (a.im * ratio - a.re) * scale};
}
template <class T> T np_remainder(T a, T b) {
    if constexpr (Is<T>::real) {
        T rest = fmod(a, b);
        if (b == 0) return rest;
        if (rest == 0) return copysign((T) 0, b);
        return (b < 0) != (rest < 0) ? rest + b : rest;
    } else {
        if (b == 0 || b == (T) -1 && (T) -1 < 0) return 0;
        const T rest = a % b;
        return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
    }
}
template <class T> T np_floor_divide(T a, T b) {
    if constexpr (Is<T>::real) {
        if (b == 0) return a / b;
        T rest = fmod(a, b), times = (a - rest) / b;
        if (rest != 0 && (b < 0) != (rest < 0)) times -= 1;
        if (times == 0) return copysign((T) 0, a / b);
        const T whole = floor(times);
        return times - whole > (T) 0.5 ? whole + 1 : whole;
    } else {
        if (b == 0) return 0;
        if (b == (T) -1 && (T) -1 < 0) return np_subtract((T) 0, a);
        const T times = a / b;
        return times * b != a && (a < 0) != (b < 0) ? times - 1 : times;
    }
}
template <class T> T np_fmod(T a, T b) {
    if constexpr (Is<T>::real) return fmod(a, b);
    else return b == 0 || b == (T) -1 && (T) -1 < 0 ? 0 : a % b;
}
template <class T> T np_power(T a, T b) {
    if constexpr (Is<T>::real) return pow(a, b);
    else {
        if (b < 0) return a == 1 ? 1 : a != (T) -1 ? 0 : b & 1 ? -1 : 1;
        typename Wrapping<T>::type base = a, product = 1;
        for (; b; b >>= 1, base *= base) if (b & 1) product *= base;
        return (T) product;
    }
}
template <class T> T np_square(T x) { return np_multiply(x, x); }
template <class T> T np_cube(T x) { return x * x * x; }
template <class T> T np_fourth(T x) { return (x * x) * (x * x); }
template <class T> T np_reciprocal(T x) { return 1 / x; }
inline float np_reciprocal(float x) { return np_divide(1.0f, x); }
template <class T> T np_positive(T x) { return x; }
template <class T> T np_negative(T x) {
    if constexpr (Is<T>::complex) return {-x.re, -x.im};
    else if constexpr (Is<T>::real) return -x;
    else return np_subtract((T) 0, x);
}
// ptxas takes `abs` of the least integer for positive, so the compiler must not see that it is one.
template <class T> T np_absolute_integer(T x) {
    if constexpr ((T) -1 > 0) return x;
    T sign = x < 0 ? -1 : 0;
    if constexpr (sizeof(T) == 8) asm("" : "+l"(sign));
    else if constexpr (sizeof(T) == 4) asm("" : "+r"(sign));
    else if constexpr (sizeof(T) == 2) asm("" : "+h"(sign));
    return np_subtract<T>(x ^ sign, sign);
}
template <class T> typename Part<T>::type np_absolute(T x) {
    if constexpr (Is<T>::complex) return hypot(x.re, x.im);
    else if constexpr (Is<T>::real) return fabs(x);
    else return np_absolute_integer(x);
}
inline bool np_absolute(bool x) { return x; }
template <class T> T np_conjugate(T x) {
    if constexpr (Is<T>::complex) return {x.re, -x.im};
    else return x;
}
"""

FUNCTIONS = r"""
template <class T> bool np_isnan(T x) {
    if constexpr (Is<T>::complex) return x.re != x.re || x.im != x.im;
    else return x != x;
}
template <class T> bool np_isinf(T x) {
    if constexpr (Is<T>::complex) return np_isinf(x.re) || np_isinf(x.im);
    else if constexpr (Is<T>::real) return isinf(x);
    else return false;
}
template <class T> bool np_isfinite(T x) {
    if constexpr (Is<T>::complex) return np_isfinite(x.re) && np_isfinite(x.im);
    else if constexpr (Is<T>::real) return isfinite(x);
    else return true;
}
template <class T> bool np_signbit(T x) { return signbit(x); }
template <class T> T np_sign(T x) { return x > 0 ? 1 : x < 0 ? -1 : x; }
inline float np_sign(float x) { return x > 0 ? 1 : x < 0 ? -1 : x == 0 ? 0 : x; }
inline double np_sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : x == 0 ? 0 : x; }
#define ROUNDED(name, function)                                                             \
    template <class T> T name(T x) {                                                        \
        if constexpr (Is<T>::real) return function(x);                                      \
        else return x;                                                                      \
    }
ROUNDED(np_floor, floor)
ROUNDED(np_ceil, ceil)
ROUNDED(np_trunc, trunc)
template <class T> T np_logaddexp(T a, T b) {
    if (a == b) return a + (T) 0.693147180559945309417232121458176568;
    const T apart = a - b;
    return apart > 0 ? a + log1p(exp(-apart)) : apart <= 0 ? b + log1p(exp(apart)) : apart;
}
template <class T> T np_logaddexp2(T a, T b) {
    if (a == b) return a + 1;
    const T apart = a - b, bits = (T) 1.442695040888963407359924681001892137;
    return apart > 0 ? a + bits * log1p(exp2(-apart))
        : apart <= 0 ? b + bits * log1p(exp2(apart)) : apart;
}
template <class T> T np_heaviside(T x, T at_zero) {
    return x != x ? x : x == 0 ? at_zero : x < 0 ? 0 : 1;
}
template <class T> T np_degrees(T x) { return x * (T) (180.0 / 3.14159265358979323846); }
template <class T> T np_radians(T x) { return x * (T) (3.14159265358979323846 / 180.0); }
template <class T> T np_nan_to_num(T x, T most, T least) {
    return x != x ? 0 : x > most ? most : x < least ? least : x;
}
template <class U, class T> T np_sinc(U x, T least) {
    const T turned = (T) 3.14159265358979323846 * (T) x, apart = turned != 0 ? turned : least;
    return sin(apart) / apart;
}
template <class T> bool np_isclose(T a, T b, T relative, T absolute) {
    return (fabs(a - b) <= absolute + relative * fabs(b) && np_isfinite(b)) || a == b;
}
template <class T> T np_maximum(T a, T b) { return a >= b || a != a ? a : b; }
template <class T> T np_minimum(T a, T b) { return a <= b || a != a ? a : b; }
template <class T> T np_fmax(T a, T b) { return a >= b || b != b ? a : b; }
template <class T> T np_fmin(T a, T b) { return a <= b || b != b ? a : b; }
template <class T> T np_and(T a, T b) { return a & b; }
template <class T> T np_or(T a, T b) { return a | b; }
template <class T> T np_xor(T a, T b) { return a ^ b; }
template <class T> T np_invert(T x) { return ~x; }
inline bool np_invert(bool x) { return !x; }
template <class T> T np_left_shift(T a, T b) {
    typedef typename Wrapping<T>::type U;
    return (ULong) (Long) b < 8 * sizeof(T) ? (T) ((U) a << b) : 0;
}
template <class T> T np_right_shift(T a, T b) {
    return (ULong) (Long) b < 8 * sizeof(T) ? a >> b : a < 0 ? -1 : 0;
}
#define COMPARED(name, op)                                                                  \
    template <class T> bool name(T a, T b) { return a op b; }                               \
    inline bool name(Long a, ULong b) { return a < 0 ? -1 op 0 : (ULong) a op b; }          \
    inline bool name(ULong a, Long b) { return b < 0 ? 0 op -1 : a op (ULong) b; }
COMPARED(np_equal, ==)
COMPARED(np_not_equal, !=)
COMPARED(np_less, <)
COMPARED(np_less_equal, <=)
COMPARED(np_greater, >)
COMPARED(np_greater_equal, >=)
template <class R> bool np_equal(Complex<R> a, Complex<R> b) {
    return a.re == b.re && a.im == b.im;
}
template <class R> bool np_not_equal(Complex<R> a, Complex<R> b) { return !np_equal(a, b); }
template <class T> bool np_logical_and(T a, T b) { return cast<bool>(a) && cast<bool>(b); }
template <class T> bool np_logical_or(T a, T b) { return cast<bool>(a) || cast<bool>(b); }
template <class T> bool np_logical_xor(T a, T b) { return cast<bool>(a) != cast<bool>(b); }
template <class T> bool np_logical_not(T x) { return !cast<bool>(x); }
"""

QUICK = r"""
// Quotients and roots that are right if `plain` stays true: if no operand or result is 0,
// subnormal, close to the largest number, infinite or NaN. Half the instructions of the others.
// The remainder has 24 bits less than the dividend: that of a smaller one would be subnormal.
constexpr float LEAST = 1e-30f;
template <bool QUICK> struct Divide {
    int& plain;
    template <class T> T operator()(T a, T b) const {
        if constexpr (QUICK && Same<T, float>::value) {
            float inverse;
            asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(b));
            const float about = a * inverse, rest = fmaf(-about, b, a);
            plain &= fabs(rest) < fabs(a) && fabs(a) > LEAST;
            return fmaf(rest, inverse, about);
        } else return ::np_divide(a, b);
    }
};
template <bool QUICK> struct Root {
    int& plain;
    template <class T> T operator()(T x) const {
        if constexpr (QUICK && Same<T, float>::value) {
            float inverse;
            asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
            const float about = x * inverse, rest = fmaf(-about, about, x);
            plain &= fabs(rest) < x && x > LEAST;
            return fmaf(rest, 0.5f * inverse, about);
        } else return ::np_sqrt(x);
    }
};
"""

PRELUDE = TYPES + ARITHMETIC + FUNCTIONS
