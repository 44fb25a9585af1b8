"""A seccomp filter for programs that nobody trusts, as the classic BPF that the kernel and bubblewrap read.

    wrong architecture, x32   killed
    newer than this list      ENOSYS, as on an older kernel
    in `_REFUSED`             EPERM
    clone                     EPERM unless it starts a thread: the program stays one process, whose memory has a limit
    socketpair                EPERM unless of Unix sockets: other families load modules of the kernel
    clone3                    ENOSYS: its flags lie in memory that a filter cannot read; C libraries then use clone
    all others                allowed

Layout of instructions and of `seccomp_data`: linux/filter.h, linux/seccomp.h.
"""

from __future__ import annotations

import errno
import struct

_LOAD_WORD, _JUMP_EQUAL, _JUMP_AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
"""Offsets in seccomp_data. The argument's lower half comes first: both machines are little-endian."""

_CLONE_THREAD = 0x00010000
_CLONE_NEW_NAMESPACE = 0x7E020080
"""CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""

_NEWEST = 462
"""mseal, of Linux 6.10."""

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column of the tables below, and the value of AUDIT_ARCH."""

_CLONE, _CLONE3 = (56, 220), (435, 435)
_SOCKETPAIR, _AF_UNIX = (53, 199), 1
_X32 = 0x40000000

_REFUSED: dict[str, tuple[int | None, int | None]] = {
    # other processes
    "fork": (57, None),
    "vfork": (58, None),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "unshare": (272, 97),
    "setns": (308, 268),
    # the network, and kernel code behind kinds of sockets that no namespace holds (vsock, AF_ALG)
    "socket": (41, 198),
    # memory that no limit of the process counts
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmctl": (31, 195),
    "shmat": (30, 196),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    # file systems
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "fanotify_init": (300, 262),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    # parts of the kernel with a history of holes, and those for administrators
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "personality": (135, 92),
    "modify_ldt": (154, None),
    "iopl": (172, None),
    "ioperm": (173, None),
    "syslog": (103, 116),
    "acct": (163, 89),
    "lookup_dcookie": (212, 18),
    "vhangup": (153, 58),
    "uselib": (134, None),
    "ustat": (136, None),
    "sysfs": (139, None),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
}
"""Numbers on x86-64 and arm64; None: not there."""


def seccomp_filter(machine: str) -> bytes:
    """The filter for a machine by the name of `platform.machine()`. Raises KeyError for one without a table."""
    column, architecture = _MACHINES[machine]
    refused = sorted(numbers[column] or 0 for numbers in _REFUSED.values() if numbers[column] is not None)
    program = [
        _instruction(_LOAD_WORD, _ARCHITECTURE),
        _instruction(_JUMP_EQUAL, architecture, jump_true=1),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD_WORD, _NUMBER),
        *_unless(_JUMP_AT_LEAST, _X32, _KILL),
        *_unless(_JUMP_AT_LEAST, _NEWEST + 1, _ERRNO | errno.ENOSYS),
        *_unless(_JUMP_EQUAL, _CLONE3[column], _ERRNO | errno.ENOSYS),
    ]
    for number in refused:
        program += _unless(_JUMP_EQUAL, number, _ERRNO | errno.EPERM)
    program += [
        _instruction(_JUMP_EQUAL, _SOCKETPAIR[column], jump_false=4),
        _instruction(_LOAD_WORD, _FIRST_ARGUMENT),
        _instruction(_JUMP_EQUAL, _AF_UNIX, jump_true=1),
        _instruction(_RETURN, _ERRNO | errno.EPERM),
        _instruction(_RETURN, _ALLOW),
        _instruction(_JUMP_EQUAL, _CLONE[column], jump_true=1),
        _instruction(_RETURN, _ALLOW),
        _instruction(_LOAD_WORD, _FIRST_ARGUMENT),
        _instruction(_AND, _CLONE_THREAD | _CLONE_NEW_NAMESPACE),
        _instruction(_JUMP_EQUAL, _CLONE_THREAD, jump_true=1),
        _instruction(_RETURN, _ERRNO | errno.EPERM),
        _instruction(_RETURN, _ALLOW),
    ]
    return b"".join(program)


def _unless(jump: int, value: int, outcome: int) -> list[bytes]:
    """Return `outcome` where the comparison holds, else go on."""
    return [_instruction(jump, value, jump_false=1), _instruction(_RETURN, outcome)]


def _instruction(code: int, value: int, jump_true: int = 0, jump_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, jump_true, jump_false, value)
