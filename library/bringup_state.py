#!/usr/bin/python
# Copyright: the hostcheck authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name; it runs on the controller and never connects to the host."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: bringup_state
short_description: Write down on the controller how far a bring-up has come
description:
  - Keeps C(state.json) in the folder of the run's reports, replaced whole at every write, so that a run that is killed
    leaves a state that says so.
  - With O(step=begin) it fails while a host of an earlier batch has not passed, whether it failed or cannot be reached.
  - With O(step=may_pass) it fails unless every step was made on the boot that was recorded last, and none failed.
options:
  step:
    description: The step that was made, V(begin) before the first, V(may_pass) before the mark, V(end) after all.
    type: str
    required: true
    choices:
      [begin, record, unmark, wait, audit, apply, read_back, smoke, collective, probe, compare, gate, may_pass, end]
  result:
    description: How it ended. V(nothing_to_do) and V(reboot_required) are for O(step=end).
    type: str
    choices: [passed, not_needed, failed, nothing_to_do, reboot_required]
    default: passed
  said:
    description: One line for a person.
    type: str
    default: ""
  facts:
    description: With O(step=record), facts of M(host_facts), groups identity, kernel_log, last_boot and next_boot.
    type: dict
    default: {}
  report_dir:
    description: Folder for reports; relative to the working directory of the playbook run.
    type: path
    default: reports
attributes:
  check_mode:
    description: Writes nothing, and lets every batch begin.
    support: full
  diff_mode:
    description: Changes nothing on the host.
    support: none
author:
  - the hostcheck authors
"""

EXAMPLES = r"""
- name: Let this batch begin
  bringup_state:
    step: begin

- name: Write down that every card computes
  bringup_state:
    step: smoke
    said: "4 cards, sum 2097152.0 on each"
"""

RETURN = r"""
state:
  description: The file on the controller; empty in check mode.
  returned: always
  type: str
  sample: reports/20260101T000000Z/state.json
said:
  description: The line that was written down.
  returned: always
  type: str
  sample: "the boot before: no sign of a bad end, which proves nothing"
boot:
  description: What was recorded of this boot.
  returned: with O(step=record)
  type: dict
  sample: {"boot_id": "11111111-1111-1111-1111-111111111111", "kernel": "7.0.0-38-generic"}
"""
