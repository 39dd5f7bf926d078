#!/usr/bin/python
# Copyright: the hostcheck authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan a trial over boots and judge it; the work is done by an action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: trial_boots
short_description: Plan a trial over boots, and judge it by the receipts of its boots
description:
  - For settings that need a boot. The unit is the boot - one receipt of M(latency_probe) for each, arms by turns.
  - With O(state=planned) says in which order the boots are to come and which count already. Bad input is refused here.
  - With O(state=recorded) writes a result that names the receipts with their digests, and says what they show. A
    verdict needs four boots of each arm; before that both ranges are described.
  - Runs on the controller and sends nothing to the host. A boot that cannot be told from another one, that was not
    started with the command line of its arm, or whose receipt does not verify, is refused.
options:
  state:
    description: Whether to plan, or to write the result over the boots so far.
    type: str
    choices: [planned, recorded]
    default: planned
  setting:
    description: Setting that M(host_setting) switches, or V(by_hand) for what only a person can, such as a BIOS item.
    type: str
    default: kernel_arguments
  wanted:
    description: What arm B wants of O(setting); of kernel arguments each boot's command line must show it.
    type: dict
    default: {}
  arms:
    description: What C(A) and C(B) are, in words. By default A is as it was, and B is O(wanted).
    type: dict
    default: {}
  metric:
    description: The one metric that the verdict is about; by default that of the setting.
    type: str
    default: ""
  statistic:
    description: How the samples of a block are summarised.
    type: str
    default: median
  device:
    description: Type of device that must have been measured.
    type: str
    choices: [auto, xpu, cuda, cpu]
    default: auto
  card:
    description: PCI address of the card that the trial is about, of several.
    type: str
    default: ""
  cards:
    description: PCI addresses of the cards that are measured; none for the CPU.
    type: list
    elements: str
    default: []
  per_arm:
    description: Boots of each arm at the first look. The second and last one is at twice as many.
    type: int
    default: 4
  evidence:
    description: State in the receipts that must differ between the arms, for example V(bios); without a name, anything.
    type: list
    elements: str
    default: []
  seed:
    description: Seed of the order of the boots; drawn and recorded when it is not given.
    type: int
  earlier:
    description: Receipts of earlier boots to be added, as lists below C(A) and C(B).
    type: dict
    default: {}
  resume:
    description: Go on with the last result for the same host and claim, where there is one in O(receipts).
    type: bool
    default: true
  plan:
    description: What the task with O(state=planned) returned; for O(state=recorded).
    type: dict
    default: {}
  boots:
    description: Boots of this run in their order, each with C(arm) and C(files), the receipts of that boot.
    type: list
    elements: dict
    default: []
  by_coin:
    description: Did these boots follow the order of the plan? Boots that a person ordered do not.
    type: bool
    default: true
  restore:
    description: Why the setting did not get back to what it was before; the result is then invalid.
    type: str
    default: ""
  receipts:
    description: Folder on the controller for receipts and results.
    type: path
    default: reports/receipts
attributes:
  check_mode:
    description: Planning changes nothing. There is nothing to record in check mode.
    support: full
  diff_mode:
    description: Changes nothing on a host, so there is no difference to show.
    support: none
author:
  - the hostcheck authors
"""

EXAMPLES = r"""
- name: Plan four boots with and four without an argument
  trial_boots:
    wanted: {present: [iommu=pt]}
    cards: ["0000:23:00.0"]
  register: planned

- name: Judge the boots so far
  trial_boots:
    state: recorded
    plan: "{{ planned }}"
    boots:
      - {arm: A, files: [reports/receipts/gpu-1-0000-23-00.0-20260101T000000Z.json]}
"""

RETURN = r"""
claim:
  description: What the trial is about, declared before its first boot.
  returned: when planned
  type: dict
  sample: {"metric": "launch_us", "per_arm": 4}
order:
  description: Arm of each boot of the run, by the coins of the seed.
  returned: when planned
  type: list
  elements: str
  sample: [A, B, B, A]
counts:
  description: Boots of each arm that count already.
  returned: when planned
  type: dict
  sample: {"A": 0, "B": 0}
resumed:
  description: Does the run go on with an earlier result?
  returned: when planned
  type: bool
  sample: false
boots:
  description: The boots that count already.
  returned: when planned
  type: list
  elements: dict
  sample: []
runs:
  description: Seeds of the runs before this one.
  returned: when planned
  type: list
  elements: dict
  sample: []
run:
  description: Seed and size of this run.
  returned: when planned
  type: dict
  sample: {"seed": 7, "per_arm": 4}
file:
  description: The result; when planned its name, when recorded its path.
  returned: always
  type: str
  sample: reports/receipts/gpu-1-0000-23-00.0-boots-20260101T000000Z.json
word:
  description: V(invalid), V(vacuous), V(improved), V(regressed), V(no_change) or V(inconclusive).
  returned: when recorded
  type: str
  sample: inconclusive
sentence:
  description: The result in one sentence.
  returned: when recorded
  type: str
  sample: "launch_us: no change beyond +5.0 %"
reasons:
  description: Why it is that word.
  returned: when recorded
  type: list
  elements: str
  sample: ["4 and 4 boots, shift +0.3 %, p 0.69"]
notes:
  description: What else must be said.
  returned: when recorded
  type: list
  elements: str
  sample: []
lines:
  description: The whole result for a terminal of 80 columns.
  returned: when recorded
  type: list
  elements: str
  sample: []
"""
