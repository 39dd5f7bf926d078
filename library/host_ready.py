#!/usr/bin/python
# Copyright: the hostcheck authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The ready mark of a host: ask for it, give it, take it away; and keep evidence of a device loss."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: host_ready
short_description: Ask for, give or take away the ready mark of a host, and keep evidence of a device loss
description:
  - The mark is C(/run/hostcheck/ready.json). It is there only while the host has passed on this boot.
  - V(present) takes an older mark away first. It writes a new one only when O(passed) is true, O(boot_id) is this boot,
    the kernel log can be read and has nothing against a card, and no card has a coredump; else it fails.
  - V(absent) and V(evidence) take the mark away before they do anything else.
  - V(evidence) copies coredumps before the kernel drops them, with the log and readings, into
    C(/var/lib/hostcheck/evidence/BOOT ID), for root alone. Evidence is never deleted; RV(evidence) says what was cut.
  - No state opens a card. See docs/ready.md.
options:
  state:
    description: What to do; V(query) changes nothing.
    type: str
    choices: [query, present, absent, evidence]
    default: query
  passed:
    description: Whether the host has passed; used with O(state=present).
    type: bool
    default: false
  boot_id:
    description: The boot on which it has passed, as in C(/proc/sys/kernel/random/boot_id); needed when it has.
    type: str
    default: ""
  findings:
    description: Ids of the findings by status, for the mark; for example C(warn) with a list.
    type: dict
    default: {}
  receipts:
    description: Digests of the probe's receipts, for the mark.
    type: list
    elements: str
    default: []
  log_after:
    description:
      - Seconds since boot up to which the kernel log was looked at already, such as RV(log_end) of an earlier call.
      - Only what comes after counts; without it the whole boot does.
    type: float
  reason:
    description: Why the mark goes; for hooks and for the evidence.
    type: str
    default: ""
  probed:
    description: Whether the one bounded health probe after the fault was made already, for RV(rung).
    type: bool
    default: false
  on_pass:
    description:
      - Hooks that run after the mark was given, each with C(command) (a list) and C(timeout) (seconds, 30 by default).
      - Each gets two more arguments, V(pass) and the reason. One that fails makes the task fail; the mark stays.
    type: list
    elements: dict
    default: []
  on_fail:
    description: The same, with V(fail), after the mark was refused or taken away. One that fails is a warning.
    type: list
    elements: dict
    default: []
  dump_limit:
    description: Bytes of one coredump that are kept.
    type: int
    default: 67108864
  total_limit:
    description: Bytes that all evidence on the host may take.
    type: int
    default: 536870912
  root:
    description: Directory that is read and changed in place of C(/).
    type: path
    default: /
attributes:
  check_mode:
    description: Changes nothing, runs no hook, and answers what is now.
    support: full
  diff_mode:
    description: The mark has no earlier value worth showing.
    support: none
author:
  - the hostcheck authors
"""

EXAMPLES = r"""
- name: Take the mark away before anything is done
  host_ready:
    state: absent

- name: See what the kernel said since the step before
  host_ready:
    log_after: "{{ before.log_end }}"
  register: now

- name: Open the gate
  host_ready:
    state: present
    passed: true
    boot_id: "{{ before.boot_id }}"

- name: Keep what tells why the card was lost
  host_ready:
    state: evidence
    reason: the all-reduce lost a device
    on_fail:
      - command: [/usr/local/lib/hostcheck/slurm-hook]
"""

RETURN = r"""
ready:
  description: Whether a job may start now.
  returned: always
  type: bool
  sample: true
code:
  description: The same as the exit code of C(hostcheck ready), 0 ready, 1 not, 3 could not tell.
  returned: always
  type: int
  sample: 0
reason:
  description: Why, in one line.
  returned: always
  type: str
  sample: "not ready: the mark is of another boot; this one has not passed yet"
boot_id:
  description: This boot; empty when it could not be read.
  returned: always
  type: str
log_end:
  description: Seconds since boot of the newest line of the kernel log; null when it could not be read.
  returned: always
  type: float
  sample: 812.5
log_unread:
  description: Why the kernel log could not be read; empty when it could.
  returned: always
  type: str
faults:
  description: What the kernel log has against a card, one line each.
  returned: always
  type: list
  elements: str
load_time_fault:
  description: Whether RV(faults) are exactly the known fault of a load, after which one more start may be tried.
  returned: always
  type: bool
rung:
  description: With RV(faults), C(number) and C(text) of the next rung of the recovery ladder, for a person.
  returned: always
  type: dict
evidence:
  description: Where evidence was kept (C(folder)), which C(files) with their bytes, what was C(cut) and why.
  returned: always
  type: dict
hooks:
  description: Each hook that ran, with its problem; empty when it went well.
  returned: always
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.hostcheck.onhost.ready.gate import Request, run
from ansible.module_utils.hostcheck.onhost.recording import below
from ansible.module_utils.hostcheck.onhost.settings.files import Failed, Writer


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["query", "present", "absent", "evidence"], "default": "query"},
            "passed": {"type": "bool", "default": False},
            "boot_id": {"type": "str", "default": ""},
            "findings": {"type": "dict", "default": {}},
            "receipts": {"type": "list", "elements": "str", "default": []},
            "log_after": {"type": "float"},
            "reason": {"type": "str", "default": ""},
            "probed": {"type": "bool", "default": False},
            "on_pass": {"type": "list", "elements": "dict", "default": [], "no_log": False},
            "on_fail": {"type": "list", "elements": "dict", "default": [], "no_log": False},
            "dump_limit": {"type": "int", "default": 67108864},
            "total_limit": {"type": "int", "default": 536870912},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    given = dict(module.params)
    root = given.pop("root")
    try:
        answer = run(Writer(root), below(root), Request(**given), module.check_mode)
    except (ValueError, Failed) as error:
        module.fail_json(msg=str(error))
    for one in answer["hooks"]:
        if one["problem"]:
            module.warn(f"hook {' '.join(one['command'])}: {one['problem']}")
    if answer.get("msg"):
        module.fail_json(**answer)
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
