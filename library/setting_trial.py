#!/usr/bin/python
# Copyright: the hostcheck authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Find out whether a setting changes how long it takes to submit work on this host."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: setting_trial
short_description: Find out whether a setting changes this host, by switching it to and fro
description:
  - Measures sham pairs first, then pairs of blocks with and without the setting in coin-flip order, and gives a
    verdict; with two toggles blocks of base, A, B and A+B. See docs/probe.md.
  - The values found come back on every way out and are read back; should this process die, a transient timer
    (C(hostcheck-restore-*)), or a process of its own where no systemd runs, puts them back at once.
  - An action plugin of the same name saves the receipts, also those that killed runs left in
    C(/var/lib/hostcheck/trials), and removes them from the host.
options:
  state:
    description: V(run) a trial, or only V(collect) what killed runs left, values and receipts.
    type: str
    choices: [run, collect]
    default: run
  toggles:
    description: What is switched; one, or two for their effects and their interaction.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: V(cpu_governor), V(pcie_aspm), V(gpu_runtime_pm), V(value) or V(command).
        type: str
        required: true
      a:
        description: Arm A, with the keys of arm B. Empty for what is there now.
        type: dict
        default: {}
      b:
        description:
          - Arm B, with the keys of C(hostcheck_expect.settings); for V(value) C(path) and C(value); for V(command) the
            argument lists C(a), C(b), C(read) and C(restore).
        type: dict
        default: {}
  command:
    description: The way to a Python with torch, as for M(latency_probe). Required for V(run).
    type: list
    elements: str
    default: []
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
  card:
    description: Address of the card to be measured; the first one when empty.
    type: str
    default: ""
  metric:
    description: Primary metric; by default the one declared with the toggle.
    type: str
    default: ""
  statistic:
    description: What a block is summarised by; by default as declared with the toggle.
    type: str
    default: ""
  keep:
    description: With V(improved) arm B stays in force until the next boot, when that is the verdict.
    type: str
    choices: [never, improved]
    default: never
  quick:
    description: Take 8 pairs in place of 16 to 40; finds large effects only.
    type: bool
    default: false
  pin:
    description: Keep the worker on one processor.
    type: bool
    default: true
  seed:
    description: Seed of the order of the blocks; drawn and recorded when it is not given.
    type: int
  image:
    description: Name of the image in O(command), to record its digest.
    type: str
    default: ""
  timeout:
    description: Seconds for everything; by default three times what is expected, at least 300.
    type: float
  saved:
    description: Trials that the action plugin has saved; they are removed from the host.
    type: list
    elements: str
    default: []
  receipts:
    description: Folder on the controller for receipts.
    type: path
    default: reports/receipts
  root:
    description: Directory that is read and written in place of C(/).
    type: path
    default: /
attributes:
  check_mode:
    description: Switches and starts nothing; says what would be switched and what stands against it.
    support: full
  diff_mode:
    description: The values found come back, so there is no difference to show.
    support: none
author:
  - the hostcheck authors
"""

EXAMPLES = r"""
- name: Does the governor performance change this host?
  setting_trial:
    command: [/opt/venv/bin/python]
    toggles:
      - name: cpu_governor
        b: {governor: performance}
"""

RETURN = r"""
refused:
  description: Why this cannot be tried here; out of check mode the task fails with it.
  returned: with O(state=run)
  type: list
  elements: str
needs_boot:
  description: It can be tried over boots, not while the host runs.
  returned: with O(state=run)
  type: bool
plan:
  description: C(toggles), C(metric), C(card), C(obstacle) and C(expected_s).
  returned: with O(state=run)
  type: dict
word:
  description: The verdict; C(sentence), C(reasons), C(notes) and, with two toggles, C(effects) say more.
  returned: when something was measured
  type: str
kept:
  description: Arm B stays in force until the next boot.
  returned: when something was measured
  type: bool
restored:
  description: Empty, or which of the values found are not back.
  returned: always
  type: str
files:
  description: Receipts on the controller, this run's last; C(collected) are those of earlier runs.
  returned: when there are any
  type: list
  elements: str
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.hostcheck.onhost.settings.engine import Failed, Host, Refused
from ansible.module_utils.hostcheck.onhost.trials import run as trials


def measure(module: AnsibleModule, host: Host) -> dict[str, Any]:
    """Run a trial, or say in check mode what it would do."""
    prepared = trials.prepare(host, trials.request_of(module.params))
    answer = trials.view(prepared)
    if module.check_mode:
        return answer
    if answer["refused"]:
        module.fail_json(msg="; ".join(answer["refused"]), **answer)
    said: list[str] = []
    outcome = trials.run(host, prepared, said.append, trials.listening)
    return {**answer, "said": said, **trials.told(outcome), "trials": trials.hand_over(outcome)}


def main() -> None:
    """Run the module."""
    toggle = {
        "name": {"type": "str", "required": True},
        "a": {"type": "dict", "default": {}},
        "b": {"type": "dict", "default": {}},
    }
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["run", "collect"], "default": "run"},
            "toggles": {"type": "list", "elements": "dict", "default": [], "options": toggle},
            "command": {"type": "list", "elements": "str", "default": []},
            "device": {"type": "str", "choices": ["auto", "xpu", "cuda", "cpu"], "default": "auto"},
            "cards": {"type": "list", "elements": "str", "default": []},
            "card": {"type": "str", "default": ""},
            "metric": {"type": "str", "default": ""},
            "statistic": {"type": "str", "default": ""},
            "keep": {"type": "str", "choices": ["never", "improved"], "default": "never"},
            "quick": {"type": "bool", "default": False},
            "pin": {"type": "bool", "default": True},
            "seed": {"type": "int"},
            "image": {"type": "str", "default": ""},
            "timeout": {"type": "float"},
            "saved": {"type": "list", "elements": "str", "default": []},
            "receipts": {"type": "path", "default": "reports/receipts"},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    try:
        host = Host(module.params["root"])
        if module.params["state"] == "run":
            answer = measure(module, host)
        else:
            answer = trials.tidy(host, module.params["saved"], module.check_mode)
    except (ValueError, Refused, Failed) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(answer.get("kept")), **answer)


if __name__ == "__main__":
    main()
