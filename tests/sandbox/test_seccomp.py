"""The filter's decisions, by a small interpreter of classic BPF."""

from __future__ import annotations

import errno
import struct

import pytest

from kvarn.sandbox.seccomp import seccomp_filter

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000


def decide(program: bytes, architecture: int, number: int, first_argument: int = 0) -> int:
    data = struct.pack("<IIQQQQQQQ", number, architecture, 0, first_argument, 0, 0, 0, 0, 0)
    instructions = list(struct.iter_unpack("<HBBI", program))
    at, accumulator = 0, 0
    while True:
        code, jump_true, jump_false, value = instructions[at]
        at += 1
        if code == 0x06:
            return int(value)
        if code == 0x20:
            accumulator = int.from_bytes(data[value : value + 4], "little")
        elif code == 0x54:
            accumulator &= value
        elif code == 0x15:
            at += jump_true if accumulator == value else jump_false
        elif code == 0x35:
            at += jump_true if accumulator >= value else jump_false
        else:
            raise AssertionError(f"instruction {code:#x}")


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_system_calls_that_are_allowed_and_refused(machine: str) -> None:
    program, architecture = seccomp_filter(machine), ARCHITECTURES[machine]
    arm = machine == "aarch64"
    allowed = {
        "read": 63 if arm else 0,
        "openat": 56 if arm else 257,
        "execve": 221 if arm else 59,
        "futex": 98 if arm else 202,
    }
    refused = {
        "ptrace": 117 if arm else 101,
        "socket": 198 if arm else 41,
        "mount": 40 if arm else 165,
        "bpf": 280 if arm else 321,
    }
    assert {decide(program, architecture, number) for number in allowed.values()} == {ALLOW}
    assert {decide(program, architecture, number) for number in refused.values()} == {ERRNO | errno.EPERM}
    assert decide(program, architecture, 435) == ERRNO | errno.ENOSYS  # clone3
    assert decide(program, architecture, 463) == ERRNO | errno.ENOSYS


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_clone_starts_threads_only(machine: str) -> None:
    program, architecture = seccomp_filter(machine), ARCHITECTURES[machine]
    clone = 220 if machine == "aarch64" else 56
    thread, new_user, child_exit = 0x003D0F00, 0x10000000, 17
    assert decide(program, architecture, clone, thread) == ALLOW
    for flags in (0, child_exit, new_user, thread | new_user, thread & ~0x10000):
        assert decide(program, architecture, clone, flags) == ERRNO | errno.EPERM


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_pairs_of_sockets_are_unix_sockets_only(machine: str) -> None:
    program, architecture = seccomp_filter(machine), ARCHITECTURES[machine]
    socketpair = 199 if machine == "aarch64" else 53
    assert decide(program, architecture, socketpair, 1) == ALLOW
    for family in (0, 2, 16, 30, 40):
        assert decide(program, architecture, socketpair, family) == ERRNO | errno.EPERM


def test_other_architectures_and_x32_are_killed() -> None:
    program = seccomp_filter("x86_64")
    assert decide(program, 0x40000003, 0) == KILL  # i386: other numbers
    assert decide(program, ARCHITECTURES["x86_64"], 0x40000000) == KILL
    assert decide(program, ARCHITECTURES["aarch64"], 63) == KILL


def test_machine_without_a_table_has_no_filter() -> None:
    with pytest.raises(KeyError):
        seccomp_filter("riscv64")
