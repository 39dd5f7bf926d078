#!/usr/bin/python
# Copyright: the hostcheck authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Measure how long it takes to submit work to every card of a host."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: latency_probe
short_description: Measure how long it takes to submit work to every card of a host
description:
  - Starts a worker in a Python that has torch and measures one card after the other.
  - Judges every card first. When one sleeps, has faulted on this boot, is wedged, has a devcoredump or is in use, no
    worker is started, because listing the devices opens them all; the receipts are then invalid and say why.
  - Looks again afterwards. A fault line, a devcoredump, a throttle counter that moved, another process on the card, a
    lost device or a wrong result make a receipt invalid, and no figure of it may be quoted.
  - An action plugin of the same name verifies each receipt on the controller, writes it to a file, and says what it
    means.
  - With O(mode=smoke) or O(mode=collective) nothing is timed; the task fails where a card does not compute in time, or
    the kernel log says something new.
  - Changes nothing on the host. Everything that was started is ended at O(timeout), with all its children.
options:
  mode:
    description:
      - V(smoke) sums on every card, 20 s each; V(collective) joins a rank on each card, 90 s, over the interface of
        C(/etc/hostcheck/collective.env).
    type: str
    choices: [probe, smoke, collective]
    default: probe
  excuse:
    description:
      - Seconds since boot up to which the one known fault of a load does not count, for the one retry after it.
        Not with O(mode=probe).
    type: float
    default: -1.0
  command:
    description:
      - The way to a Python with torch 2.6 or later, as a list that ends where Python's own arguments begin.
      - For example a virtual environment's Python, C(podman run) with an image, C(docker exec -i); see docs/probe.md.
    type: list
    elements: str
    required: true
  device:
    description: Type of device. V(auto) takes the host's cards, and the CPU where there is none.
    type: str
    choices: [auto, xpu, cuda, cpu]
    default: auto
  cards:
    description: PCI addresses of the cards whose device nodes O(command) has; all of the host when empty.
    type: list
    elements: str
    default: []
  quick:
    description: Take 8 pairs of blocks in place of 12.
    type: bool
    default: false
  ranks:
    description:
      - Number of ranks of the all-reduce, V(0) for none. One for each card by default, where there are two or more.
    type: int
  pin:
    description: Keep the worker on one processor, of the card's memory node.
    type: bool
    default: true
  seed:
    description: Seed of the order of the blocks; drawn and recorded when it is not given.
    type: int
  image:
    description: Name of the image in O(command), or with C(exec) of the container, to record its digest.
    type: str
    default: ""
  timeout:
    description: Seconds for everything; by default four times what is expected, at least 300.
    type: float
  receipts:
    description: Folder on the controller for receipts; relative to the working directory of the playbook run.
    type: path
    default: reports/receipts
  root:
    description: Directory that is read in place of C(/) for the state of the host; the worker runs on the host itself.
    type: path
    default: /
attributes:
  check_mode:
    description: Starts nothing; says what would be measured, what stands against it, and how long it takes.
    support: full
  diff_mode:
    description: Changes nothing, so there is no difference to show.
    support: none
author:
  - the hostcheck authors
"""

EXAMPLES = r"""
- name: Probe every card with the torch of a virtual environment
  latency_probe:
    command: [/opt/venv/bin/python]

- name: Probe with the image that serves
  latency_probe:
    command: [podman, run, -i, --rm, --entrypoint, python3, --device, /dev/dri, "registry.example/vllm-xpu:1"]
    image: registry.example/vllm-xpu:1
"""

RETURN = r"""
expected_s:
  description: Seconds that the measurement takes, as expected before it starts.
  returned: always
  type: float
  sample: 115.0
cards:
  description: Every card that is to be measured, and why it must not be opened; "" when it may.
  returned: always
  type: dict
  sample: {"0000:23:00.0": "", "0000:43:00.0": "is suspended"}
obstacle:
  description: Why nothing can be measured, whatever the cards are like; "" when nothing is known.
  returned: always
  type: str
  sample: ""
said:
  description: Progress, one line each.
  returned: when something was measured
  type: list
  elements: str
  sample: ["0000:23:00.0: sham: pairs 1 to 12, about 25 s"]
lines:
  description: What the receipts say, a few lines for each card, and what differs between cards.
  returned: when something was measured
  type: list
  elements: str
  sample: ["0000:23:00.0: launch_us_async 3.13 us, launch_plus_sync_us 25.98 us"]
outcomes:
  description: What every card gave; the kind is V(ok), V(not_needed) or a named failure.
  returned: with smoke and collective
  type: list
  elements: dict
  sample: [{"subject": "0000:23:00.0", "kind": "ok", "text": "sum 2097152.0 on xpu:0"}]
files:
  description: Receipts on the controller, for C(hostcheck verify) and C(hostcheck probe --show).
  returned: when something was measured
  type: list
  elements: str
  sample: ["reports/receipts/gpu-1-0000-23-00.0-20260101T000000Z.json"]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.hostcheck.onhost.probe.gates import collective, smoke
from ansible.module_utils.hostcheck.onhost.probe.host import Request, probe, survey
from ansible.module_utils.hostcheck.onhost.recording import below


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "mode": {"type": "str", "choices": ["probe", "smoke", "collective"], "default": "probe"},
            "excuse": {"type": "float", "default": -1.0},
            "command": {"type": "list", "elements": "str", "required": True},
            "device": {"type": "str", "choices": ["auto", "xpu", "cuda", "cpu"], "default": "auto"},
            "cards": {"type": "list", "elements": "str", "default": []},
            "quick": {"type": "bool", "default": False},
            "ranks": {"type": "int"},
            "pin": {"type": "bool", "default": True},
            "seed": {"type": "int"},
            "image": {"type": "str", "default": ""},
            "timeout": {"type": "float"},
            "receipts": {"type": "path", "default": "reports/receipts"},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    given = {key: value for key, value in module.params.items() if key not in ("mode", "receipts", "root")}
    mode, said = module.params["mode"], []
    try:
        if mode == "probe" and given["excuse"] >= 0:
            raise ValueError("excuse: no figure is taken on a boot that has faulted")
        reader = below(module.params["root"])
        request = Request(**given)
        found = survey(reader, request)
    except ValueError as error:
        module.fail_json(msg=str(error))
    answer = {
        "changed": False,
        "expected_s": found.expected_s,
        "cards": {card.bdf: found.sick.get(card.bdf, "") for card in found.cards},
        "obstacle": found.obstacle,
    }
    if not module.check_mode and mode == "probe":
        answer["receipts"] = probe(reader, request, found, said.append)
        answer["said"] = said
    elif not module.check_mode:
        proof = {"smoke": smoke, "collective": collective}[mode](reader, request, found)
        answer["outcomes"] = [vars(one) for one in proof.outcomes]
        if not proof.good:
            module.fail_json(msg=str(proof), **answer)
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
