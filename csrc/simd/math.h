// Functions of sixteen floats, built on the functions every instruction set has.
#pragma once

namespace kvarn::KVARN_ISA {

// e^x, within 2 units in the last place. 0 below -87.3, where normal numbers end; infinite above 88.37, half a power of
// two before all numbers do. NaN stays NaN: `min` and `max` give their second argument where one is NaN.
// Method: x = n ln 2 + r with |r| <= ln 2 / 2, a polynomial for e^r, exponents added (Cody and Waite 1980; the
// coefficients are those of a minimax fit of degree 6, as in Cephes).
inline F16 exp(F16 x) {
    const F16 lowest = splat(-87.3f);
    const F16 clamped = min(splat(89.0f), max(lowest, x));
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

// tanh x = 1 - 2 / (e^2x + 1), within 2e-7 of it. Past 10 it is 1.
inline F16 tanh(F16 x) {
    const F16 bounded = min(splat(10.0f), max(splat(-10.0f), x));
    const F16 e = exp(add(bounded, bounded));
    return sub(splat(1.0f), div(splat(2.0f), add(e, splat(1.0f))));
}

// 1 / (1 + e^-x), within 3 units in the last place; 0 below -88.37.
inline F16 sigmoid(F16 x) { return div(splat(1.0f), add(splat(1.0f), exp(sub(zero(), x)))); }

// x * sigmoid(x)
inline F16 silu(F16 x) { return div(x, add(splat(1.0f), exp(sub(zero(), x)))); }

// The normal distribution's share below x, within 5e-8: half of erfc(t) = e^(-t^2 + t q(t)), t = |x| / sqrt 2, or what
// is left of one. q is a polynomial of our own, fitted to log erfc by least squares whose weights were raised where the
// error of erfc was largest; past t = 5.5 (erfc < 1e-14) the tail counts as zero.
inline F16 normal_share(F16 x) {
    constexpr float fit[] = {4.84076885e-8f,  -1.45024921e-6f, 1.89001712e-5f, -1.39684707e-4f,
                             6.27450238e-4f,  -1.55333604e-3f, -5.59824621e-5f, 1.93420015e-2f,
                             -1.02860063e-1f, 3.63396823e-1f,  -1.12838018f};
    const F16 t = mul(max(x, sub(zero(), x)), splat(0.707106781186547524f));
    F16 q = splat(fit[0]);
    for (int i = 1; i < 11; ++i) q = fma(q, t, splat(fit[i]));
    const F16 tail = where_less(t, splat(5.5f), mul(exp(mul(t, sub(q, t))), splat(0.5f)), zero());
    return where_less(x, zero(), tail, sub(splat(1.0f), tail));
}

// x times the normal distribution's share below x.
inline F16 gelu(F16 x) { return mul(x, normal_share(x)); }

// The approximation of gelu by a hyperbolic tangent.
inline F16 gelu_tanh(F16 x) {
    const F16 cubic = fma(mul(mul(x, x), x), splat(0.044715f), x);
    const F16 half = mul(x, splat(0.5f));
    return fma(half, tanh(mul(cubic, splat(0.797884560802865356f))), half);
}

}  // namespace kvarn::KVARN_ISA
