#!/usr/bin/python
# Copyright: the hostcheck authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Put the receipts before and after a change side by side; the work is done by an action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: probe_before_after
short_description: Put the receipts before and after a change side by side, without a verdict
description:
  - Shows for each card what was measured before and after a change. It is descriptive only, because one measurement
    before and one after cannot tell the change from the noise between two moments.
  - Runs on the controller and sends nothing to the host.
options:
  before:
    description: Receipts of M(latency_probe) before the change.
    type: list
    elements: path
    required: true
  after:
    description: Receipts of M(latency_probe) after the change.
    type: list
    elements: path
    required: true
attributes:
  check_mode:
    description: Reads files on the controller, in check mode too.
    support: full
  diff_mode:
    description: Changes nothing, so there is no difference to show.
    support: none
author:
  - the hostcheck authors
"""

EXAMPLES = r"""
- name: Show what was measured before and after
  probe_before_after:
    before: "{{ first.files }}"
    after: "{{ second.files }}"
"""

RETURN = r"""
word:
  description: Always V(descriptive).
  returned: always
  type: str
  sample: descriptive
sentence:
  description: The first metric of the first card in one sentence.
  returned: always
  type: str
  sample: "cpu: launch_us: before 1.1 (1 to 1.4), after 1.2 (1 to 1.6) us, after / before = 1.09 (descriptive only)"
lines:
  description: All there is to say, a few lines for each card.
  returned: always
  type: list
  elements: str
  sample: []
"""
