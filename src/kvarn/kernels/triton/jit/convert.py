"""Numbers of 4 and 8 bits as bfloat16, the type that tensor cores multiply.

The compiler converts them one at a time, by an instruction of which a multiprocessor does 16 in a cycle. Here
instructions on pairs move their bits to where a bfloat16 has them. The results are exact, so the bits are those of any
other conversion, as the interpreter's, which has no assembler.
"""

import triton
import triton.language as tl

_INT8 = tl.constexpr("""
{
.reg .b32 bits, own, base;
cvt.u32.u16 bits, $1;
prmt.b32 bits, bits, 0x43434343, 0x4140;
and.b32 own, bits, 0xff7fff7f;
lop3.b32 base, bits, 0x00800080, 0xc300c300, 0xea;
add.rn.bf16x2 $0, own, base;
}
""")
"""128 + the lower seven bits, which fill the fraction of a bfloat16 between 128 and 256; less 128, or 256 where the
sign is set: the sign's bit makes the one out of the other."""
_FP8 = tl.constexpr("""
{
.reg .b32 bits, own, power;
mov.b32 power, 0x7b807b80;
cvt.u32.u16 bits, $1;
prmt.b32 bits, bits, 0, 0x1404;
and.b32 own, bits, 0x7fff7fff;
shr.b32 own, own, 4;
lop3.b32 own, bits, 0x80008000, own, 0xea;
mul.rn.bf16x2 $0, own, power;
}
""")
"""Exponent and fraction moved by four bits; times 2^120, the difference between the exponents' biases. e4m3's smallest
numbers become those of bfloat16, which the multiplication takes."""
_FOUR_INT8 = tl.constexpr("""
{
.reg .b32 first, second, own, base;
prmt.b32 first, $2, 0x43434343, 0x4140;
prmt.b32 second, $2, 0x43434343, 0x4342;
and.b32 own, first, 0xff7fff7f;
lop3.b32 base, first, 0x00800080, 0xc300c300, 0xea;
add.rn.bf16x2 $0, own, base;
and.b32 own, second, 0xff7fff7f;
lop3.b32 base, second, 0x00800080, 0xc300c300, 0xea;
add.rn.bf16x2 $1, own, base;
}
""")
_FOUR_FP8 = tl.constexpr("""
{
.reg .b32 first, second, own, power;
mov.b32 power, 0x7b807b80;
prmt.b32 first, $2, 0, 0x1404;
prmt.b32 second, $2, 0, 0x3424;
and.b32 own, first, 0x7fff7fff;
shr.b32 own, own, 4;
lop3.b32 own, first, 0x80008000, own, 0xea;
mul.rn.bf16x2 $0, own, power;
and.b32 own, second, 0x7fff7fff;
shr.b32 own, own, 4;
lop3.b32 own, second, 0x80008000, own, 0xea;
mul.rn.bf16x2 $1, own, power;
}
""")
"""Like the above, of the four bytes of a word."""
_CODES = tl.constexpr("""
{
.reg .b32 t;
and.b32 t, $4, 0x0f0f0f0f;
prmt.b32 $0, t, 0x43434343, 0x4140;
prmt.b32 $1, t, 0x43434343, 0x4342;
shr.b32 t, $4, 4;
and.b32 t, t, 0x0f0f0f0f;
prmt.b32 $2, t, 0x43434343, 0x4140;
prmt.b32 $3, t, 0x43434343, 0x4342;
}
""")


@triton.jit
def converted(numbers, NUMBERS: tl.constexpr, DOT: tl.constexpr):
    """Numbers rounded to NUMBERS, as DOT. An fp8 NaN (e4m3) becomes a number."""
    if tl.bfloat16 == DOT and numbers.dtype == tl.int8:
        result = tl.inline_asm_elementwise(_INT8, "=r,h", [numbers], tl.bfloat16, True, 2)
    elif tl.bfloat16 == DOT and numbers.dtype == tl.float8e4nv:
        result = tl.inline_asm_elementwise(_FP8, "=r,h", [numbers], tl.bfloat16, True, 2)
    else:
        result = numbers.to(NUMBERS).to(DOT)
    return result


@triton.jit
def four_converted(numbers, NUMBERS: tl.constexpr, DOT: tl.constexpr):
    """Like `converted`, for numbers of which a thread holds four side by side."""
    if tl.bfloat16 == DOT and numbers.dtype == tl.int8:
        result = tl.inline_asm_elementwise(_FOUR_INT8, "=r,=r,r", [numbers], tl.bfloat16, True, 4)
    elif tl.bfloat16 == DOT and numbers.dtype == tl.float8e4nv:
        result = tl.inline_asm_elementwise(_FOUR_FP8, "=r,=r,r", [numbers], tl.bfloat16, True, 4)
    else:
        result = numbers.to(NUMBERS).to(DOT)
    return result


@triton.jit
def codes(pairs, DOT: tl.constexpr):
    """The lower and the upper four bits of bytes, each with 128 added: as bfloat16 that is their bits behind those of
    128."""
    if tl.bfloat16 == DOT:
        low, high = tl.inline_asm_elementwise(_CODES, "=r,=r,=r,=r,r", [pairs], (tl.bfloat16, tl.bfloat16), True, 4)
    else:
        low, high = (pairs & 15).to(DOT) + 128.0, (pairs >> 4).to(DOT) + 128.0
    return low, high
