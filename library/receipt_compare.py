#!/usr/bin/python
# Copyright: the hostcheck authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name; it runs on the controller and never connects to the host."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: receipt_compare
short_description: Compare new receipts of a host with its last good ones, and with other hosts
description:
  - Takes for every card the newest earlier receipt that is valid and verifies, from the same torch and image.
  - Fails where a card that was measured last time is not seen now, its class is a worse one, or a figure is slower by
    more than a quarter and both noise floors. Two boots are compared unpaired, so this is a gate and never a claim.
  - Says in which class the other hosts of the inventory with such cards are. That never fails.
options:
  files:
    description: The new receipts, as C(latency_probe) returns them.
    type: list
    elements: path
    default: []
  receipts:
    description: Folder of all receipts; relative to the working directory of the playbook run.
    type: path
    default: reports/receipts
attributes:
  check_mode:
    description: Reads the same.
    support: full
  diff_mode:
    description: Changes nothing.
    support: none
author:
  - the hostcheck authors
"""

EXAMPLES = r"""
- name: Compare with the last good receipts
  receipt_compare:
    files: [reports/receipts/gpu-1-0000-23-00.0-20260101T000000Z.json]
"""

RETURN = r"""
lines:
  description: What was compared, and with what.
  returned: always
  type: list
  elements: str
  sample: ["0000:23:00.0: not slower than at 2026-01-01T00:00:00Z, beyond 25% and noise"]
worse:
  description: Why the task fails.
  returned: always
  type: list
  elements: str
  sample: []
digests:
  description: Digests of the new receipts.
  returned: always
  type: list
  elements: str
  sample: ["0f3a"]
"""
