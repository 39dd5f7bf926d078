#!/usr/bin/python
# Copyright: the hostcheck authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Wait after a boot until every expected card is bound, has its device nodes, and nothing moves any more."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gpu_ready
short_description: Wait after a boot until every expected card can be used
description:
  - Waits until every expected card is bound to its driver (xe or i915), has its device nodes, udev has done its work on
    them, and nothing has changed for O(settle) seconds.
  - Waits for device events where the host's Python has pyudev and udev runs, else lists sysfs once a second;
    RV(by) says which.
  - Reads what the kernel has in memory. Opens no card, wakes none, and changes nothing.
  - Fails at O(timeout), and names each missing address with what the kernel log says of it.
options:
  gpus:
    description:
      - The cards of C(hostcheck_expect.gpus), with the keys C(bdfs) (addresses), C(count), and C(ids) (PCI device ids).
      - Where C(bdfs) are given, no other card is waited for. Where nothing is given, every card on the bus is.
    type: dict
    default: {}
  timeout:
    description: Seconds after which the wait fails.
    type: float
    default: 300.0
  settle:
    description: Seconds for which cards, nodes and udev must have been quiet.
    type: float
    default: 5.0
  interval:
    description: Seconds between two listings of sysfs where there are no events.
    type: float
    default: 1.0
  root:
    description: Directory that is read in place of C(/).
    type: path
    default: /
attributes:
  check_mode:
    description: Changes nothing, so that it is the same; with O(timeout=0) it looks once.
    support: full
  diff_mode:
    description: Changes nothing, so there is no difference to show.
    support: none
author:
  - the hostcheck authors
"""

EXAMPLES = r"""
- name: Wait for the cards of the host
  gpu_ready:
    gpus: "{{ (hostcheck_expect | default({})).gpus | default({}) }}"
    timeout: 300

- name: Wait for two cards by their addresses
  gpu_ready:
    gpus:
      bdfs: ["0000:23:00.0", "0000:27:00.0"]
"""

RETURN = r"""
cards:
  description: Every card of the host at the end.
  returned: when the bus could be listed
  type: list
  elements: dict
  sample: [{"bdf": "0000:23:00.0", "device": "e223", "driver": "xe", "nodes": ["card1", "renderD128"], "lacks": ""}]
missing:
  description: What is missing, with what it lacks; empty when every card is there.
  returned: when the bus could be listed
  type: dict
  sample: {"0000:27:00.0": "on the bus, not bound to a driver (wanted xe or i915)"}
log:
  description: The newest lines of the kernel log that name a missing address.
  returned: when the bus could be listed
  type: dict
  sample: {"0000:27:00.0": ["[    9.120000] xe 0000:27:00.0: probe with driver xe failed with error -110"]}
by:
  description: What was waited by.
  returned: when the bus could be listed
  type: str
  sample: device events (pyudev), and a listing every 10 s
seconds:
  description: How long it took.
  returned: when the bus could be listed
  type: float
  sample: 7.2
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.hostcheck.onhost.plain import to_plain
from ansible.module_utils.hostcheck.onhost.ready.cards import expected, message, wait
from ansible.module_utils.hostcheck.onhost.recording import below


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "gpus": {"type": "dict", "default": {}},
            "timeout": {"type": "float", "default": 300.0},
            "settle": {"type": "float", "default": 5.0},
            "interval": {"type": "float", "default": 1.0},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    given = module.params
    try:
        wanted = expected(given["gpus"])
        if given["timeout"] < 0 or given["settle"] < 0 or given["interval"] <= 0:
            raise ValueError("timeout and settle are seconds, not negative; interval is more than 0")
        reader = below(given["root"])
    except ValueError as error:
        module.fail_json(msg=str(error))
    waited = wait(reader, wanted, given["timeout"], given["settle"], given["interval"])
    if waited.value is None:
        module.fail_json(msg=f"{waited.source}: {waited.unread}: {waited.detail}")
    answer = to_plain(waited.value)
    if waited.value.missing:
        module.fail_json(msg=message(waited.value), **answer)
    module.exit_json(changed=False, **answer)


if __name__ == "__main__":
    main()
