from __future__ import annotations

from pathlib import Path

import pytest

from kvarn.doctor.finding import Level
from kvarn.doctor.machine import (
    GIB,
    available_memory,
    check_directory,
    check_kv_caches,
    check_memory,
    check_open_files,
    check_processors,
    check_sandbox,
    file_system_of,
    processor_name,
)

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
tmpfs /srv tmpfs rw 0 0
/dev/sdb1 /srv/kvarn xfs rw 0 0
"""


def test_the_processor_is_named_where_linux_names_it():
    assert processor_name("processor\t: 0\nmodel name\t: AMD EPYC 7763\nflags\t: fpu\n") == "AMD EPYC 7763"
    assert processor_name("processor\t: 0\nBogoMIPS\t: 50.00\n") == ""


@pytest.mark.parametrize(("quota", "level"), [(None, Level.OK), (2.0, Level.OK), (0.5, Level.WARNING)])
def test_a_container_with_less_than_two_processors_is_warned_of(quota, level):
    found = check_processors("", "x86_64", 4, 8, quota)
    assert found.level is level and ("limited" in found.detail) == (level is Level.WARNING)


def test_little_memory_is_warned_of_whether_it_is_limited_or_taken():
    assert check_memory(8 * GIB, 4 * GIB).level is Level.OK
    assert check_memory(8 * GIB, GIB).level is Level.WARNING
    assert check_memory(GIB, GIB).level is Level.WARNING


def test_available_memory_is_at_most_that_of_the_container():
    meminfo = "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n"
    assert available_memory(meminfo, 16 * GIB) == 8 * GIB
    assert available_memory(meminfo, 2 * GIB) == 2 * GIB
    assert available_memory("", 2 * GIB) == 2 * GIB


def test_kv_caches_that_do_not_fit_are_an_error():
    assert check_kv_caches(0, 8 * GIB) is None
    assert check_kv_caches(4, 8 * GIB).level is Level.OK
    assert check_kv_caches(8, 8 * GIB).level is Level.ERROR


def test_a_hard_limit_of_open_files_below_what_clients_need_is_warned_of():
    assert check_open_files(None, 16896).level is check_open_files(16896, 16896).level is Level.OK
    found = check_open_files(1024, 16896)
    assert found.level is Level.WARNING and "1,024" in found.detail and "LimitNOFILE" in found.advice


def test_the_file_system_is_that_of_the_innermost_mount():
    assert file_system_of(Path("/srv/kvarn/db"), MOUNTS) == "xfs"
    assert file_system_of(Path("/srv/other"), MOUNTS) == "tmpfs"
    assert file_system_of(Path("/srv-2"), MOUNTS) == "ext4"
    assert file_system_of(Path("/srv"), "") == ""


@pytest.mark.parametrize(
    ("free", "file_system", "level", "says"),
    [
        (100 * GIB, "ext4", Level.OK, "first start"),
        (GIB, "ext4", Level.WARNING, "1.0 GiB free"),
        (GIB // 4, "ext4", Level.ERROR, "0.2 GiB free"),
        (100 * GIB, "tmpfs", Level.WARNING, "in memory"),
        (100 * GIB, "overlay", Level.WARNING, "container's own layer"),
    ],
)
def test_the_data_directory_has_room_and_lasts(tmp_path, free, file_system, level, says):
    found = check_directory(tmp_path / "kvarn", free, file_system)
    assert found.level is level and says in found.detail
    assert not (tmp_path / "kvarn").exists()


def test_a_data_directory_that_others_may_read_is_warned_of(tmp_path):
    tmp_path.chmod(0o755)
    assert "chmod 700" in check_directory(tmp_path, 100 * GIB, "ext4").advice
    tmp_path.chmod(0o700)
    assert check_directory(tmp_path, 100 * GIB, "ext4").level is Level.OK


def test_a_file_in_place_of_the_data_directory_is_an_error(tmp_path):
    (tmp_path / "kvarn").write_text("")
    assert check_directory(tmp_path / "kvarn", 100 * GIB, "ext4").level is Level.ERROR


def test_a_missing_sandbox_is_warned_of_with_what_it_costs():
    assert check_sandbox(None, parses_without=False).level is Level.OK
    missing = check_sandbox("bubblewrap is not installed", parses_without=False)
    assert missing.level is Level.WARNING
    assert "not installed; the code interpreter is off, and PDF" in missing.detail
    assert "PDF" not in check_sandbox("no", parses_without=True).detail
