"""The gated delta rule (Gated DeltaNet, Yang et al. 2024) of one layer, for the tokens of one step.

`mix` prepares each token by itself, `advance` takes each sequence's state through its tokens one after the other, and
`finish` norms what comes out. Decode steps and prompts run the same operations in the same order, so an output's bits
depend on its own sequence alone, wherever its prompt is cut.

Sequences with a negative place have no state: they fill a batch up. `inputs` [places, WINDOW - 1, channels] float32 are
the last inputs of the convolution, the newest last; a token's are queries and keys by key heads, then values by value
heads.
"""

import triton
import triton.language as tl

from kvarn.kernels.triton.jit.elementwise import activate


@triton.jit
def mix(
    projected,
    rates,
    convolution,
    decay,
    decay_bias,
    rows,
    query_starts,
    places,
    saves,
    inputs,
    mixed,
    factors,
    eps,
    STRIDE: tl.constexpr,
    RATES_STRIDE: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Convolution, SiLU, lengths of queries and keys, and the rates of a token.

    Program (t, i): head i of queries, then keys, then values, of token t, which is in sequence rows[t]. To mixed [T,
    channels] float32, and of value heads to factors [T, VALUE_HEADS, 2] float32: by what the state is multiplied, and
    the share of what it says of the key that the value replaces. Where saves [T] is a place, the inputs after the token
    are copied there.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    channels: tl.constexpr = 2 * KEY_HEADS * KEY + VALUE_HEADS * VALUE
    is_value = head >= 2 * KEY_HEADS
    first = tl.where(is_value, 2 * KEY_HEADS * KEY + (head - 2 * KEY_HEADS) * VALUE, head * KEY)
    d = tl.arange(0, BLOCK)
    inside = d < tl.where(is_value, VALUE, KEY)
    channel = first + d
    row = tl.load(rows + token)
    start = tl.load(query_starts + row)
    place = tl.load(places + row)
    save = tl.load(saves + token)
    total = tl.zeros([BLOCK], tl.float32)
    for k in tl.static_range(WINDOW):
        source = token - (WINDOW - 1) + k
        valid = source >= start
        kept = inputs + (place * (WINDOW - 1) + WINDOW - 1 + source - start) * channels
        own = tl.load(projected + source * STRIDE + channel, mask=inside & valid, other=0.0).to(tl.float32)
        own += tl.load(kept + channel, mask=inside & (source < start) & (place >= 0), other=0.0)
        total += own * tl.load(convolution + k * channels + channel, mask=inside, other=0.0)
        if k > 0:
            copy = inputs + (save * (WINDOW - 1) + k - 1) * channels
            tl.store(copy + channel, own, mask=inside & (save >= 0))
    total = activate(total, "silu")
    if head < 2 * KEY_HEADS:
        total *= tl.rsqrt(tl.sum(total * total, 0) + eps)
    if head < KEY_HEADS:
        total *= KEY**-0.5
    tl.store(mixed + token * channels + channel, total, mask=inside)
    if is_value:
        number = head - 2 * KEY_HEADS
        overwritten = tl.load(rates + token * RATES_STRIDE + number).to(tl.float32)
        x = tl.load(rates + token * RATES_STRIDE + VALUE_HEADS + number).to(tl.float32) + tl.load(decay_bias + number)
        faded = tl.exp(tl.load(decay + number) * _softplus(x))
        own_factors = factors + (token * VALUE_HEADS + number) * 2
        tl.store(own_factors, faded)
        tl.store(own_factors + 1, activate(overwritten, "sigmoid"))


@triton.jit
def _softplus(x):
    """log(1 + exp(x)), also where exp(x) is far smaller than 1."""
    small = tl.exp(tl.minimum(x, 20.0))
    one_more = 1.0 + small
    # What the sum has lost, the quotient makes up for.
    precise = tl.where(one_more == 1.0, small, tl.log(one_more) * (small / tl.maximum(one_more - 1.0, 1e-30)))
    return tl.where(x > 20.0, x, precise)


@triton.jit
def advance(
    mixed,
    factors,
    query_starts,
    places,
    saves,
    matrices,
    out,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """States through tokens. Program (s, h, c): COLUMNS columns of head h's matrix [KEY, VALUE] of sequence s, in
    registers from its first token to its last one.

    matrices [places, VALUE_HEADS, KEY, VALUE] float32 hold the states at places [S] afterwards, and at saves [T] those
    after some tokens. To out [T, VALUE_HEADS, VALUE] float32.
    """
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    i = tl.arange(0, KEY_BLOCK)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < VALUE
    held = (i < KEY)[:, None] & inside[None, :]
    cell = (head * KEY + i)[:, None] * VALUE + column[None, :]
    place = tl.load(places + sequence)
    size: tl.constexpr = VALUE_HEADS * KEY * VALUE
    state = tl.load(matrices + place * size + cell, mask=held & (place >= 0), other=0.0)
    channels: tl.constexpr = 2 * KEY_HEADS * KEY + VALUE_HEADS * VALUE
    key_head = head // (VALUE_HEADS // KEY_HEADS)
    start = tl.load(query_starts + sequence).to(tl.int64)
    for offset in range(tl.load(query_starts + sequence + 1) - start):
        token = start + offset
        own = mixed + token * channels
        query = tl.load(own + key_head * KEY + i, mask=i < KEY, other=0.0)
        key = tl.load(own + (KEY_HEADS + key_head) * KEY + i, mask=i < KEY, other=0.0)
        value = tl.load(own + 2 * KEY_HEADS * KEY + head * VALUE + column, mask=inside, other=0.0)
        faded = tl.load(factors + (token * VALUE_HEADS + head) * 2)
        overwritten = tl.load(factors + (token * VALUE_HEADS + head) * 2 + 1)
        state *= faded
        change = (value - tl.sum(state * key[:, None], 0)) * overwritten
        state += key[:, None] * change[None, :]
        result = tl.sum(state * query[:, None], 0)
        tl.store(out + (token * VALUE_HEADS + head) * VALUE + column, result, mask=inside)
        save = tl.load(saves + token)
        if save >= 0:
            tl.store(matrices + save * size + cell, state, mask=held)
    tl.store(matrices + place * size + cell, state, mask=held & (place >= 0))


@triton.jit
def finish(
    mixed,
    projected,
    norm,
    rows,
    query_starts,
    places,
    inputs,
    out,
    eps,
    STRIDE: tl.constexpr,
    CHANNELS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    VALUE: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK: tl.constexpr,
    SLICE: tl.constexpr,
    SLICE_BLOCK: tl.constexpr,
    WINDOW_BLOCK: tl.constexpr,
):
    """Norm and gate of each head's outputs mixed [T, VALUE_HEADS, VALUE] float32, to out of the same shape; gates stand
    behind the CHANNELS of projected.

    Program (t, h): head h of token t. Where that is its sequence's last one, the programs also keep the last inputs of
    the convolution, SLICE channels each.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    d = tl.arange(0, BLOCK)
    inside = d < VALUE
    number = (token * VALUE_HEADS + head) * VALUE + d
    own = tl.load(mixed + number, mask=inside, other=0.0)
    factor = tl.rsqrt(tl.sum(own * own, 0) / VALUE + eps)
    gate = tl.load(projected + token * STRIDE + CHANNELS + head * VALUE + d, mask=inside, other=0.0).to(tl.float32)
    own = own * factor * tl.load(norm + d, mask=inside, other=0.0) * activate(gate, "silu")
    tl.store(out + number, own.to(out.dtype.element_ty), mask=inside)
    row = tl.load(rows + token)
    place = tl.load(places + row)
    if (token + 1 == tl.load(query_starts + row + 1)) & (place >= 0):
        start = tl.load(query_starts + row)
        k = tl.arange(0, WINDOW_BLOCK)
        part = tl.arange(0, SLICE_BLOCK)
        channel = head * SLICE + part
        real = (k < WINDOW - 1)[:, None] & ((part < SLICE) & (channel < CHANNELS))[None, :]
        source = (token + 1 - (WINDOW - 1) + k)[:, None]
        valid = source >= start
        kept = inputs + place * (WINDOW - 1) * CHANNELS
        last = tl.load(projected + source * STRIDE + channel[None, :], mask=real & valid, other=0.0).to(tl.float32)
        earlier = kept + (WINDOW - 1 + source - start) * CHANNELS + channel[None, :]
        last += tl.load(earlier, mask=real & (source < start), other=0.0)
        tl.debug_barrier()  # all is read before any of it is overwritten
        tl.store(kept + k[:, None] * CHANNELS + channel[None, :], last, mask=real)
