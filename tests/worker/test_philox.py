import numpy as np
import pytest

from kvarn.worker.philox import philox4x32, uniforms

# From the file of known answers published with Random123 (Salmon et al., SC 2011).
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter, key, expected):
    words = [np.array([word], dtype=np.uint64) for word in (*counter, *key)]
    result = philox4x32((words[0], words[1], words[2], words[3]), (words[4], words[5]))
    assert tuple(int(word[0]) for word in result) == expected


def test_a_number_depends_on_seed_and_position_alone() -> None:
    seeds = np.array([7, 2**63 - 1, 7, 8], dtype=np.uint64)
    positions = np.array([0, 5, 2**33, 0], dtype=np.int64)
    together = uniforms(seeds, positions)
    alone = [uniforms(seeds[i : i + 1], positions[i : i + 1])[0] for i in range(4)]
    assert together.tolist() == alone
    assert len(set(alone)) == 4


def test_numbers_are_uniform_over_positions_and_over_seeds() -> None:
    count = 50_000
    steps = np.arange(count)
    for numbers in (
        uniforms(np.full(count, 3, dtype=np.uint64), steps),
        uniforms(steps.astype(np.uint64), np.zeros(count, dtype=np.int64)),
    ):
        assert numbers.min() >= 0
        assert numbers.max() < 1
        bins = np.bincount((numbers * 100).astype(int), minlength=100)
        chi_square = float(((bins - count / 100) ** 2 / (count / 100)).sum())
        assert chi_square < 149.4  # 99 degrees of freedom, p = 0.0008
        assert abs(float(np.corrcoef(numbers[:-1], numbers[1:])[0, 1])) < 0.015
