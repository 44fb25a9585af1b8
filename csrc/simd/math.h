// Functions of sixteen floats, built on the functions every instruction set has.
#pragma once

namespace kvarn::KVARN_ISA {

// e^x, within 2 units in the last place; 0 below -87.3 (so also for minus infinity), at most e^88.
// Method: x = n ln 2 + r with |r| <= ln 2 / 2, a polynomial for e^r, exponents added (Cody and Waite 1980; the
// coefficients are those of a minimax fit of degree 6, as in Cephes).
inline F16 exp(F16 x) {
    const F16 lowest = splat(-87.3f);
    const F16 clamped = min(max(x, lowest), splat(88.0f));
    const F16 n = round(mul(clamped, splat(1.44269504088896341f)));
    F16 r = fma(n, splat(-0.693359375f), clamped);
    r = fma(n, splat(2.12194440e-4f), r);
    F16 p = splat(1.9875691500e-4f);
    p = fma(p, r, splat(1.3981999507e-3f));
    p = fma(p, r, splat(8.3334519073e-3f));
    p = fma(p, r, splat(4.1665795894e-2f));
    p = fma(p, r, splat(1.6666665459e-1f));
    p = fma(p, r, splat(5.0000001201e-1f));
    const F16 value = mul(add(fma(mul(r, r), p, r), splat(1.0f)), power_of_two(n));
    return where_less(x, lowest, zero(), value);
}

// tanh x = 1 - 2 / (e^2x + 1), the argument kept where the exponential is exact enough.
inline F16 tanh(F16 x) {
    const F16 bounded = min(max(x, splat(-10.0f)), splat(10.0f));
    const F16 e = exp(add(bounded, bounded));
    return sub(splat(1.0f), div(splat(2.0f), add(e, splat(1.0f))));
}

// x * sigmoid(x)
inline F16 silu(F16 x) { return div(x, add(splat(1.0f), exp(sub(zero(), x)))); }

}  // namespace kvarn::KVARN_ISA
