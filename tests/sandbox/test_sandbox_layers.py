"""The filter, call by call; and no level is claimed whose layers do not hold."""

from __future__ import annotations

import os
import struct

import pytest

from educe.sandbox import Level, SandboxError, embedded
from educe.sandbox.embedded import ALL_LAYERS, EmbeddedBackend
from educe.sandbox.inside import seccomp

DENIED = seccomp.DENIED | seccomp.SCHEDULING


@pytest.mark.parametrize("layer", ["seccomp", "privileges"])
def test_a_level_that_does_not_hold_is_not_opened(
    layer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that pretends: the layer is off, and the sandbox believes it is on."""
    if layer == "privileges" and os.geteuid() != 0:
        pytest.skip("only root has privileges to keep")
    kept = tuple(name for name in ALL_LAYERS if name != layer)
    monkeypatch.setattr(embedded, "ALL_LAYERS", kept)
    with pytest.raises(SandboxError, match=r"does not hold here.*(seccomp|capabilities)"):
        EmbeddedBackend(minimum=Level.NAMESPACES, layers=kept)


def decide(program: bytes, architecture: int, number: int, arguments: tuple[int, ...] = ()) -> int:
    """Interpret the filter as the kernel would, for one call."""
    code = [struct.unpack_from("<HBBI", program, at) for at in range(0, len(program), 8)]
    data = struct.pack("<iIQ6Q", number, architecture, 0, *(*arguments, *([0] * 6))[:6])
    at = accumulator = 0
    while True:
        operation, if_true, if_false, value = code[at]
        at += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif operation == 0x06:
            return value
        elif operation == 0x05:
            at += value
        else:
            taken = {
                0x15: accumulator == value,
                0x25: accumulator > value,
                0x35: accumulator >= value,
                0x45: bool(accumulator & value),
            }[operation]
            at += if_true if taken else if_false


@pytest.mark.parametrize("machine", [0, 1])
@pytest.mark.parametrize("has_namespaces", [True, False])
def test_the_filter_decides_every_call_as_listed(machine: int, has_namespaces: bool) -> None:
    program = seccomp.build_filter(has_cgroup=False, has_namespaces=has_namespaces, machine=machine)
    architecture = (0xC000003E, 0xC00000B7)[machine]
    denied = {pair[machine] for pair in (DENIED | seccomp.UNCOUNTED).values()}
    if not has_namespaces:
        denied |= {pair[machine] for pair in seccomp.GROUP_ESCAPES.values()}
    clone, clone3, socket, ioctl, personality = (
        pair[machine] for pair in ((56, 220), (435, 435), (41, 198), (16, 29), (135, 92))
    )
    refused, idle = 0x00050001, {pair[machine] for pair in seccomp.IDLE.values()}
    fcntl, absent = (72, 25)[machine], set()
    if not has_namespaces:
        idle |= {pair[machine] for pair in seccomp.ATTRIBUTES.values()}
        absent = {pair[machine] for pair in seccomp.EXTENDED_ATTRIBUTES.values()}
    of_others = {pair[machine] for pair in seccomp.OF_OTHERS.values()}
    for number in of_others:
        expected = 0x7FFF0000 if has_namespaces else refused
        assert decide(program, architecture, number, (4321,)) == expected
        assert decide(program, architecture, number, (0,)) == 0x7FFF0000
    for number in range(463):
        if number in (clone, socket, ioctl, personality) or number in of_others:
            continue
        expected = refused if number in denied else 0x7FFF0000
        if number in idle:
            expected = 0x00050000
        if number in absent:
            expected = 0x0005005F
        if number == clone3:
            expected = 0x00050026
        assert decide(program, architecture, number) == expected, number
    assert decide(program, architecture, 463) == 0x00050026
    assert decide(program, architecture, clone, (0x10000000 | 17,)) == refused
    assert decide(program, architecture, clone, (0x80,)) == refused
    assert decide(program, architecture, clone, (0x8000 | 17,)) == refused
    assert decide(program, architecture, clone, (0x003D0F00,)) == 0x7FFF0000
    assert decide(program, architecture, ioctl, (0, 0x5412)) == refused
    assert decide(program, architecture, ioctl, (0, 0x541C)) == refused
    for request in (0x5400, 0x5401, 0x541B, 0x5421, 0x5450, 0x5451, 0x54FF):
        assert decide(program, architecture, ioctl, (0, request)) == 0x7FFF0000
    # Flags of files (also as a 32-bit process says it), versions, verity, reflinks, snapshots.
    for request in (0x40086602, 0x40046602, 0x401C5820, 0x40087602, 0x40806685, 0x40049409,
                    0x50009401, 0x53FF, 0x5500):  # fmt: skip
        expected = 0x7FFF0000 if has_namespaces else 0x00050019
        assert decide(program, architecture, ioctl, (0, request)) == expected, hex(request)
    for command in range(1100):
        expected = refused if command in (1024, 1040) and not has_namespaces else 0x7FFF0000
        assert decide(program, architecture, fcntl, (3, command)) == expected, command
    assert decide(program, architecture, personality, (0x0040000,)) == refused
    assert decide(program, architecture, personality, (0xFFFFFFFF,)) == 0x7FFF0000
    for family in range(50):
        allowed = has_namespaces and family in (1, 2, 10)
        wanted = 0x7FFF0000 if allowed else 0x00050061
        assert decide(program, architecture, socket, (family,)) == wanted, family


@pytest.mark.parametrize("machine", [0, 1])
def test_refused_calls_are_told_to_whoever_listens(machine: int) -> None:
    architecture = (0xC000003E, 0xC00000B7)[machine]
    plain, telling = (
        seccomp.build_filter(has_cgroup=True, has_namespaces=True, machine=machine, tells=tells)
        for tells in (False, True)
    )
    names = seccomp.names_of_told(machine)
    told = set()
    for number in range(463):
        for arguments in ((0x10000000, 0x5412), (1, 0)):
            before = decide(plain, architecture, number, arguments)
            after = decide(telling, architecture, number, arguments)
            if after == 0x7FC00000:
                told.add(names[number][0])
                assert before == 0x00050000 | names[number][1]
            else:
                assert after == before
    assert {"unshare", "mount", "socket", "ptrace", "clone", "ioctl", "personality"} <= told
    assert not told & {"io_uring_setup", "clone3"}


def test_signals_are_refused_where_landlock_cannot_keep_them_inside() -> None:
    for keeps_signals, expected in ((True, 0x7FFF0000), (False, 0x00050001)):
        program = seccomp.build_filter(
            has_cgroup=False, has_namespaces=False, keeps_signals=keeps_signals, machine=0
        )
        for number in (62, 200, 234, 424):
            assert decide(program, 0xC000003E, number) == expected


def test_foreign_system_call_tables_kill() -> None:
    program = seccomp.build_filter(has_cgroup=True, has_namespaces=True, machine=0)
    assert decide(program, 0x40000003, 20) == 0x80000000
    assert decide(program, 0xC000003E, 0x40000000 + 39) == 0x80000000
