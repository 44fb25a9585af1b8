"""Plain weights to int8, int4 or fp8, at load, on the device where they are: round to nearest, for int4 with the scale
that loses least.

For one set of numbers w that shares a scale, and whole numbers q, the best scale is <w, q> / <q, q>, and the squared
error left is |w|^2 - <w, q>^2 / <q, q>. So each of a few roundings is judged by two sums, and the best one's scale is
kept (as in llama.cpp's quantization of weights, Gerganov et al. 2023). On normally distributed weights the error of
int4 falls from 9.7 % (largest weight at 7) to 8.2 %. For int8 with a scale an output the search gains less than a
thousandth of the error, so the largest weight is 127.

Finite numbers become the same bits on every device, and as by the compiled kernels: all but the sums is rounded by
itself, and sums of 32 numbers are taken by halves.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F

from kvarn.kernels.device.memory import is_host
from kvarn.kernels.weights import FP8, SUB_GROUP, Quantization, Weight
from kvarn.shapes.packing import INT4_GROUP as INT4_GROUP

INT4_LARGEST_SUB_SCALE = 15
"""(value - 8) times so much still fits a signed byte, as which weights are multiplied."""
INT4_PEAKS = (-8.0, -7.3, -8.7)
"""Codes of a group's largest weight. Negative: of -8 to 7 it gets the larger side, whatever its sign."""
FP8_LARGEST = 448.0  # the largest number of e4m3
_NUMBERS_AT_ONCE = 30_000
"""So few stay in a core's cache from one pass to the next, and torch (from 32,768 on) starts no threads of its own."""
_NUMBERS_AT_ONCE_ON_DEVICE = 1 << 24
"""The memory that quantizing takes beside the weight stays small."""


def quantize(weight: torch.Tensor, to: Quantization) -> Weight:
    """A float weight [out, in] as int8, int4 or fp8, on its device."""
    match to:
        case "int8":
            return quantize_int8(weight)
        case "fp8":
            return quantize_fp8(weight)
        case _:
            return quantize_int4(weight)


def quantize_int8(weight: torch.Tensor) -> Weight:
    """A scale for each output."""
    values = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scales = torch.empty(weight.shape[0], dtype=torch.float32, device=weight.device)

    def piece(rows: slice) -> None:
        numbers = weight[rows].float()
        peaks = _largest(numbers).abs()
        scales[rows] = _divided(peaks, 127.0)
        values[rows] = _codes(numbers, 127.0 * _inverse(peaks), -127.0, 127.0)

    _by_pieces(weight, piece)
    return Weight(values, scales)


def quantize_fp8(weight: torch.Tensor) -> Weight:
    """e4m3 with a scale for each output, whose largest weight becomes `FP8_LARGEST`."""
    values = torch.empty(weight.shape, dtype=FP8, device=weight.device)
    scales = torch.empty(weight.shape[0], dtype=torch.float32, device=weight.device)

    def piece(rows: slice) -> None:
        numbers = weight[rows].float()
        peaks = _largest(numbers).abs()
        scales[rows] = _divided(peaks, FP8_LARGEST)
        numbers = numbers * (FP8_LARGEST * _inverse(peaks))[:, None]
        values[rows] = numbers.clamp_(-FP8_LARGEST, FP8_LARGEST).to(FP8)

    _by_pieces(weight, piece)
    return Weight(values, scales)


def quantize_int4(weight: torch.Tensor) -> Weight:
    """A float16 scale for each output and group of `INT4_GROUP` inputs, a sub_scale for each 32 of them; zero is 8.

    The best scale of each 32 inputs is found first; the largest of a group becomes 15 times the group's scale, the
    others whole multiples of it.
    """
    size = weight.shape[1]
    groups, parts = -(-size // INT4_GROUP), -(-size // SUB_GROUP)
    values = torch.empty(weight.shape, dtype=torch.uint8, device=weight.device)
    scales = torch.empty((weight.shape[0], groups), dtype=torch.float16, device=weight.device)
    sub_scales = torch.empty((weight.shape[0], parts), dtype=torch.int8, device=weight.device)

    def piece(rows: slice) -> None:
        numbers = F.pad(weight[rows].float(), (0, -size % INT4_GROUP)).view(-1, SUB_GROUP)
        wanted = _best_int4_scales(numbers).view(-1, INT4_GROUP // SUB_GROUP)
        scale = _divided(wanted.abs().amax(-1), float(INT4_LARGEST_SUB_SCALE)).half()
        sub_scale = (wanted * _inverse(scale.float())[:, None]).round_()
        sub_scale.clamp_(-INT4_LARGEST_SUB_SCALE, INT4_LARGEST_SUB_SCALE)
        sub_scale = torch.where(sub_scale == 0.0, 1.0, sub_scale)
        scales[rows] = scale.view(-1, groups)
        sub_scales[rows] = sub_scale.view(-1, groups * INT4_GROUP // SUB_GROUP)[:, :parts].to(torch.int8)
        # Rounded with the scale as it is stored, so that its own rounding costs little more.
        stored = (sub_scale * scale.float()[:, None]).flatten()
        codes = _codes(numbers, _inverse(stored), -8.0, 7.0).add_(8.0)
        values[rows] = codes.view(-1, groups * INT4_GROUP)[:, :size]

    _by_pieces(weight, piece)
    return Weight(values, scales, sub_scales=sub_scales, group=INT4_GROUP)


def _best_int4_scales(groups: torch.Tensor) -> torch.Tensor:
    """The scale of each row of `groups` [rows, n] that loses least, NaN where a number is not finite.

    n is a power of two.
    """
    largest = _largest(groups)
    inverse_peaks = _inverse(largest)
    best_scale = torch.zeros_like(inverse_peaks)
    best_gain = torch.zeros_like(inverse_peaks)
    for peak in INT4_PEAKS:
        codes = _codes(groups, peak * inverse_peaks, -8.0, 7.0)
        product = _sum_by_halves(groups * codes)
        scale = product * _inverse(_sum_by_halves(codes * codes))
        gain = product * scale
        better = gain > best_gain
        best_gain = torch.where(better, gain, best_gain)
        best_scale = torch.where(better, scale, best_scale)
    return torch.where(largest.isfinite(), best_scale, torch.nan)


def _sum_by_halves(numbers: torch.Tensor) -> torch.Tensor:
    """The sum of each row: the second half is added to the first until one number is left."""
    while (half := numbers.shape[1] // 2) > 0:
        numbers = numbers[:, :half] + numbers[:, half:]
    return numbers[:, 0]


def _largest(numbers: torch.Tensor) -> torch.Tensor:
    """The number of largest magnitude in each row, with its sign."""
    smallest, largest = torch.aminmax(numbers, dim=-1)
    return torch.where(-smallest > largest, smallest, largest)


def _codes(numbers: torch.Tensor, factor: torch.Tensor, low: float, high: float) -> torch.Tensor:
    return (numbers * factor[:, None]).round_().clamp_(low, high)


def _inverse(x: torch.Tensor) -> torch.Tensor:
    """1 / x; 0 where that is infinite."""
    inverse = x.reciprocal()
    return torch.where(inverse.isinf(), 0.0, inverse)


def _divided(x: torch.Tensor, divisor: float) -> torch.Tensor:
    # By a tensor of x's device: torch multiplies with the inverse of a number on a GPU, which rounds twice.
    return x / torch.full_like(x, divisor)


def _by_pieces(weight: torch.Tensor, piece: Callable[[slice], None]) -> None:
    """Some rows at a time; on processors on as many threads as torch uses, none of which waits for another."""
    host = is_host(weight.device)
    step = max(1, (_NUMBERS_AT_ONCE if host else _NUMBERS_AT_ONCE_ON_DEVICE) // max(weight.shape[1], 1))
    pieces = [slice(first, first + step) for first in range(0, weight.shape[0], step)]
    if not host:
        for rows in pieces:
            piece(rows)
        return
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(piece, pieces))
