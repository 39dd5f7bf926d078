"""Redaction: a planted private text never appears in a recording, and what replays is still there."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostcheck.onhost.reader import Reader
from hostcheck.onhost.record import record
from hostcheck.onhost.recording import RecordedReader, dump, empty
from hostcheck.onhost.redact import Redactor, names_of, without_serial
from tests import replay

KEPT = (
    "0000:03:00.0",
    "pcieport 10000:e1:00.0: AER: Correctable error message received",
    "version 70.54.0",
    "127.0.0.1",
    "::1",
    "255.255.255.0",
    "vm.swappiness = 10",
    "[8086:e223]",
    "serial8250: ttyS0 at I/O 0x3f8",
    "2026-11-29T17:48:44Z 12:34:56",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "00:00:00:00:00:00",
)
PLANTED = {
    "host name": ("Started on {} now", "rack7-gpu3"),
    "user name": ("/home/{}/model in {} [123]", "mlops"),
    "serial": ("Serial Number: {}", "XK77PLANT42"),
    "dmi serial": ('"serial_number": "{}"', "XK77PLANT43"),
    "lspci serial": ("Capabilities: [150] Device Serial Number {}", "de-ad-be-ef-00-11-22-33"),
    "uuid": ("root=UUID={} ro", "3d0f1f5c-6c7e-4f55-9c66-0a5a5b5c5d5e"),
    "machine id": ('"_MACHINE_ID":"{}"', "3d0f1f5c6c7e4f559c660a5a5b5c5d5e"),
    "mac": ("eth0: link up {}", "b4:2e:99:12:34:56"),
    "ipv4": ("from {} port 22", "10.17.3.44"),
    "ipv6": ("inet6 {}/64", "fd12:3456:789a::77"),
    "proxy": ("https_proxy={}", "http://planted:secret@proxy.corp.example:3128"),
    "password": ("ipmi_password={}", "hunter2planted"),
    "token": ("HF_TOKEN={}", "hf_plantedplanted"),
    "url": ("git clone {}", "https://ada:planted@git.example/x"),
}


def redactor() -> Redactor:
    return Redactor(hosts=("rack7-gpu3", "vm"), users=("mlops", "ada"))


@pytest.mark.parametrize("text", KEPT)
def test_what_replay_needs_is_kept(text: str) -> None:
    assert redactor().text(text) == text


@pytest.mark.parametrize("kind", PLANTED)
def test_planted_text_is_gone_and_replaced_consistently(kind: str) -> None:
    template, secret = PLANTED[kind]
    line = template.replace("{}", secret)
    once = redactor()
    first = once.text(line)
    assert secret not in first
    assert once.text(line) == first
    assert Redactor(hosts=("rack7-gpu3", "vm"), users=("mlops", "ada")).text(first.replace(first, line)) == first


def test_a_short_host_name_goes_only_where_it_stands_alone() -> None:
    assert redactor().text("vm kernel: hello vm") == "host-2 kernel: hello host-2"
    assert redactor().text("/proc/sys/vm/swappiness kvm vm_area vm.max") == "/proc/sys/vm/swappiness kvm vm_area vm.max"


def test_uuid_and_machine_id_of_the_same_digits_stay_the_same_thing() -> None:
    with_dashes, plain = PLANTED["uuid"][1], PLANTED["machine id"][1]
    one = redactor()
    assert one.text(with_dashes).replace("-", "") == one.text(plain)


def test_message_as_bytes() -> None:
    line = json.dumps({"MESSAGE": list(b"from rack7-gpu3 \xff"), "PRIORITY": "4"}, separators=(",", ":"))
    changed = json.loads(redactor().text(line))
    assert bytes(changed["MESSAGE"]) == b"from host-1 \xff"


def test_arguments_of_init_are_removed_from_the_command_line() -> None:
    document = {**empty(0.0), "files": {"/proc/cmdline": "ro quiet rdinit=/my/init -- --key planted\n"}}
    text = redactor().recording(document)["files"]["/proc/cmdline"]
    assert "planted" not in text
    assert "/my/init" not in text
    assert text.startswith("ro quiet ")


@pytest.mark.parametrize(
    "text",
    [
        "[    0.000000] Kernel command line: ro quiet rdinit=/planted -- --key planted",
        '{"MESSAGE":"Kernel command line: ro -- --key planted","PRIORITY":"5"}',
        "[    1.000000] Run /planted as init process",
        "[    1.000000]   with arguments:\n[    1.000000]     /planted\n[    1.000001]     --k=planted\n[    1.2] x",
        '{"MESSAGE":"    KEY=planted","PRIORITY":"7"}',
        "[    0.000000] Linux version 6.1.0 (planted@planted) (gcc 12)",
    ],
)
def test_what_the_kernel_logs_of_its_command_line_and_of_init(text: str) -> None:
    changed = redactor().text(text)
    assert "planted" not in changed
    if text.startswith("{"):
        assert "[removed]" in json.loads(changed)["MESSAGE"]
    else:
        assert changed[:14] == text[:14]


def test_serial_number_in_configuration_space() -> None:
    config = bytearray(4096)
    config[0x100:0x104] = (0x0001 | 1 << 16 | 0x140 << 20).to_bytes(4, "little")
    config[0x140:0x144] = (0x0003 | 1 << 16).to_bytes(4, "little")
    config[0x144:0x14C] = b"PLANTED!"
    changed = without_serial(bytes(config))
    assert b"PLANTED!" not in changed
    assert changed[:0x144] == bytes(config[:0x144])
    assert len(changed) == 4096


@given(st.binary(max_size=600))
def test_any_configuration_space(data: bytes) -> None:
    assert len(without_serial(data)) == len(data)


@given(st.text(max_size=200))
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    one = redactor()
    first = one.text(text)
    assert isinstance(first, str)


def planted_host() -> tuple[dict[str, object], list[str]]:
    """A recorded host with a private text in every source that it has."""
    recording = replay.host("four-card-gen4")
    secrets = [secret for _, secret in PLANTED.values()]
    junk = " ".join(template.replace("{}", secret) for template, secret in PLANTED.values())
    for path, content in recording["files"].items():
        if isinstance(content, str) and not path.endswith("/"):
            recording["files"][path] = content.rstrip("\n") + f"\n{junk}\n"
    for output in recording["commands"].values():
        output["stderr"] = output.get("stderr", "") + junk
        output["stdout"] = output.get("stdout", "") + (f"\n{junk}\n" if not output["stdout"].startswith("{") else "")
    recording["files"]["/proc/sys/kernel/hostname"] = "rack7-gpu3\n"
    recording["files"]["/etc/passwd"] = "root:x:0:0::/root:/bin/sh\nmlops:x:1000:1000::/home/mlops:/bin/sh\n"
    recording["files"]["/home/ada/"] = ""
    replay.add_log(recording, f"[   99.000000] {junk}")
    for name in list(recording["calls"]):
        value = recording["calls"][name]
        recording["calls"][name] = f"{value} {junk}" if isinstance(value, str) else {**value, "planted": [junk]}
    return recording, secrets


def test_no_planted_text_is_in_a_recording_of_any_source() -> None:
    recording, secrets = planted_host()
    reader: Reader = RecordedReader(recording)
    hosts, users = names_of(reader)
    assert "rack7-gpu3" in hosts
    assert set(users) == {"mlops", "ada"}
    _, made = record(reader)
    text = dump(made)
    for secret in secrets:
        assert secret not in text
    for content in made["files"].values():
        if isinstance(content, dict) and "base64" in content:
            assert not any(secret.encode() in base64.b64decode(content["base64"]) for secret in secrets)
