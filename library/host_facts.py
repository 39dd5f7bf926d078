#!/usr/bin/python
# Copyright: the hostcheck authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the facts of one host."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: host_facts
short_description: Read what decides how a GPU host performs, and nothing else
description:
  - Reads CPU, cpufreq, PCIe, ASPM, kernel log and tool state of a host in one round trip and judges nothing.
  - Changes nothing, opens no GPU context, wakes no sleeping card and resets nothing.
  - Every reading is a value with its source or the reason why it could not be taken.
options:
  gather_subset:
    description: Names of the groups to read; all when empty. Groups that a named one needs are read too.
    type: list
    elements: str
    default: []
  root:
    description:
      - Directory that is read instead of the host's own C(/).
      - Below it links resolve inside it, and a command is an executable inside it.
    type: path
    default: /
  under_load:
    description: The cards are busy while they are read, so that a low link speed is conclusive.
    type: bool
    default: false
  wake:
    description: Read sleeping cards as well, which wakes them.
    type: bool
    default: false
  xpu_smi:
    description: Whether xpu-smi may run. V(auto) runs it only when no card is suspended, faulted on this boot or held.
    type: str
    choices: [auto, always, never]
    default: auto
  pythons:
    description: Interpreters or environments whose torch is looked up besides the usual places, by metadata alone.
    type: list
    elements: path
    default: []
  sample_seconds:
    description: Read error and throttle counters a second time after so many seconds (60 at most), for rates.
    type: float
    default: 0.0
  initrd:
    description: Look into the initrd of the next boot, for xe and its firmware; this may take seconds.
    type: bool
    default: false
  deadline:
    description: Seconds after which the remaining groups are left unread.
    type: float
    default: 120.0
  record:
    description: Also return a recording of everything that was read, redacted.
    type: bool
    default: false
  redact:
    description: Replace names, addresses, serial numbers and secrets in the recording.
    type: bool
    default: true
attributes:
  check_mode:
    description: Can run in check mode and return the same facts.
    support: full
  diff_mode:
    description: Changes nothing, so there is no difference to show.
    support: none
  platform:
    description: Linux with Python 3.9 or later; psutil and pyudev are used where that Python has them.
    support: full
    platforms: linux
author:
  - the hostcheck authors
"""

EXAMPLES = r"""
- name: Read the host
  host_facts:
    gather_subset: [identity, cpufreq]
  register: host

- name: Show the governor of the first policy
  ansible.builtin.debug:
    var: ansible_facts.hostcheck.cpufreq
"""

RETURN = r"""
ansible_facts:
  description: Facts of the host.
  returned: always
  type: dict
  contains:
    hostcheck:
      description: The document C(hostcheck/facts/1); one key per group, every value a reading.
      returned: always
      type: dict
      sample: {"schema": "hostcheck/facts/1", "taken_at": "2026-01-01T00:00:00Z"}
recording:
  description: The document C(hostcheck/recording/1).
  returned: when O(record=true)
  type: dict
  sample: {"schema": "hostcheck/recording/1", "origin": "recorded"}
exit:
  description: V(2), bad input.
  returned: when an option cannot be followed
  type: int
  sample: 2
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.hostcheck.onhost.gather import Options, gather
from ansible.module_utils.hostcheck.onhost.plain import to_plain
from ansible.module_utils.hostcheck.onhost.record import record
from ansible.module_utils.hostcheck.onhost.recording import below


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "gather_subset": {"type": "list", "elements": "str", "default": []},
            "root": {"type": "path", "default": "/"},
            "under_load": {"type": "bool", "default": False},
            "wake": {"type": "bool", "default": False},
            "xpu_smi": {"type": "str", "choices": ["auto", "always", "never"], "default": "auto"},
            "pythons": {"type": "list", "elements": "path", "default": []},
            "sample_seconds": {"type": "float", "default": 0.0},
            "initrd": {"type": "bool", "default": False},
            "deadline": {"type": "float", "default": 120.0},
            "record": {"type": "bool", "default": False},
            "redact": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    given = module.params
    answer = {"changed": False}
    try:
        options = Options(
            under_load=given["under_load"],
            wake=given["wake"],
            xpu_smi=given["xpu_smi"],
            pythons=tuple(given["pythons"]),
            sample_seconds=given["sample_seconds"],
            initrd=given["initrd"],
        )
        reader = below(given["root"])
        if given["record"]:
            facts, answer["recording"] = record(reader, options, given["redact"])
        else:
            facts = gather(reader, options, given["gather_subset"], given["deadline"])
    except ValueError as error:
        module.fail_json(msg=str(error), exit=2)
    module.exit_json(ansible_facts={"hostcheck": to_plain(facts)}, **answer)


if __name__ == "__main__":
    main()
