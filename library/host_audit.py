#!/usr/bin/python
# Copyright: the hostcheck authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name; it runs on the controller and calls host_facts on the host."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: host_audit
short_description: Read a host and judge it
description:
  - Reads the host with M(host_facts) in one round trip and judges the facts on the controller.
  - The report at the end of the play comes from the callback P(hostcheck_report#callback).
  - Its task fails when a finding fails and is not waived.
options:
  expect:
    description: What this class of hosts should be, the document C(hostcheck/expectation/1).
    type: dict
    default: {}
  waivers:
    description: Exceptions, each with a reason and an end, as in C(hostcheck/waivers/1).
    type: list
    elements: dict
    default: []
  root:
    description: Directory that is read instead of the host's own C(/).
    type: path
    default: /
  under_load:
    description: The cards are busy while they are read.
    type: bool
    default: false
  wake:
    description: Read sleeping cards as well, which wakes them.
    type: bool
    default: false
  xpu_smi:
    description: Whether xpu-smi may run; see M(host_facts).
    type: str
    choices: [auto, always, never]
    default: auto
  sample_seconds:
    description: Read error and throttle counters a second time after so many seconds (60 at most), for rates.
    type: float
    default: 0.0
  initrd:
    description: Look into the initrd of the next boot, for xe and its firmware; this may take seconds.
    type: bool
    default: false
  fail_on:
    description: The weakest status that fails the task.
    type: str
    choices: [fail, warn]
    default: fail
  since:
    description: Bound fault findings to V(boot), V(last-run) or a time in UTC.
    type: str
    default: boot
  report_dir:
    description: Folder for reports; relative to the working directory of the playbook run.
    type: path
    default: reports
attributes:
  check_mode:
    description: Can run in check mode and gives the same findings.
    support: full
  diff_mode:
    description: Changes nothing on the host.
    support: none
author:
  - the hostcheck authors
"""

EXAMPLES = r"""
- name: Read and judge
  host_audit:
    expect: "{{ hostcheck_expect | default({}) }}"
    waivers: "{{ hostcheck_waivers | default([]) }}"
"""

RETURN = r"""
counts:
  description: Number of findings per status.
  returned: when the host was judged
  type: dict
  sample: {"fail": 0, "info": 2, "not_applicable": 3, "ok": 20, "unknown": 0, "warn": 1}
exit:
  description: 0 nothing failing, 1 a fail, 3 nothing failing but a required check is unknown.
  returned: when the host was judged
  type: int
  sample: 0
failing:
  description: Check and subject of every unwaived failing finding.
  returned: when the host was judged
  type: list
  elements: str
  sample: ["gpu.fault 0000:47:00.0"]
ids:
  description: Ids of the findings that are V(fail) (waived ones too), V(warn) or V(unknown).
  returned: when the host was judged
  type: dict
  sample: {"fail": [], "warn": ["boot.last"], "unknown": []}
report:
  description: File with the whole report on the controller.
  returned: when the host was judged
  type: str
  sample: reports/20260101T000000Z/hosts/gpu-1.json
"""
