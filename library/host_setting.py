#!/usr/bin/python
# Copyright: the hostcheck authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bring one setting of a host to its declared value, or back to the value found."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: host_setting
short_description: Bring one setting of a host to its declared value, or back to the value found
description:
  - Sets a value now and for the next boot, in files that this toolkit owns, and reads every one of them back.
  - Before the first change the values found are kept in C(/var/lib/hostcheck/NAME.json); V(absent) gives them back.
  - A value that somebody changed since is not overwritten by V(absent); RV(left) says so.
  - Refuses, before anything is touched, what the host does not offer and what another program owns.
  - Needs root on the host, other than in check mode.
options:
  name:
    description: The setting; also the name of its role, whose documentation lists the keys of O(wanted).
    type: str
    required: true
  wanted:
    description:
      - What the setting should be. Unknown keys are refused.
      - With O(state=absent) only its overrides count, such as C(runtime_write).
    type: dict
    default: {}
  state:
    description: Whether the setting should have its declared value, or the one found before the first change.
    type: str
    choices: [present, absent]
    default: present
  foreseen:
    description:
      - RV(foreseen) of the settings before this one in the same run in check mode, so that the diff is that of the run.
      - Has no effect otherwise.
    type: dict
    default: {}
  root:
    description:
      - Directory that is changed instead of the host's own C(/).
      - Below it links resolve inside it, and a command is an executable inside it.
    type: path
    default: /
attributes:
  check_mode:
    description: Can run in check mode; the diff is the one that the run gives.
    support: full
  diff_mode:
    description: Gives every file, live value and boot entry that differs.
    support: full
author:
  - the hostcheck authors
"""

EXAMPLES = r"""
- name: Set the governor of every policy, now and at every boot
  host_setting:
    name: cpu_governor
    wanted:
      governor: performance

- name: Take kernel arguments back
  host_setting:
    name: kernel_arguments
    state: absent
"""

RETURN = r"""
live:
  description: The value now.
  returned: when the host could be read
  type: str
  sample: schedutil
persistent:
  description: The value that the next boot will set.
  returned: when the host could be read
  type: str
  sample: the driver's default
effective:
  description: What the hardware does, as far as it can be seen.
  returned: when the host could be read
  type: str
  sample: 800 to 3800 MHz at this moment
owner:
  description: Who sets the value, with file and line or unit; empty when nobody does.
  returned: when the host could be read
  type: str
  sample: hostcheck (/etc/tmpfiles.d/hostcheck-cpu-governor.conf:2)
not_applicable:
  description: Why this host cannot have the setting; empty when it can.
  returned: always
  type: str
  sample: ""
reboot_required:
  description: The wanted value is there for the next boot, and not in force yet.
  returned: always
  type: bool
  sample: false
held:
  description: Processes that use a card, when a reboot is required; it would stop them.
  returned: always
  type: list
  elements: str
  sample: ["4711 (python3)"]
trial:
  description: State of a one-shot boot, V(armed) or V(booted); empty without one.
  returned: always
  type: str
  sample: ""
done:
  description: Files and values that were written, in order.
  returned: always
  type: list
  elements: str
  sample: ["/etc/tmpfiles.d/hostcheck-cpu-governor.conf"]
foreseen:
  description: In check mode, what other settings should take for done; for O(foreseen). Empty otherwise.
  returned: always
  type: dict
  sample: {}
left:
  description: What was left as it is because somebody changed it since, and what must not be written now.
  returned: always
  type: list
  elements: str
  sample: []
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.hostcheck.onhost.settings.catalogue import SETTINGS
from ansible.module_utils.hostcheck.onhost.settings.engine import Failed, Host, Refused, Result, apply, undo
from ansible.module_utils.hostcheck.onhost.settings.jobs import holders


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "wanted": {"type": "dict", "default": {}},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "foreseen": {"type": "dict", "default": {}},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    if module.params["name"] not in SETTINGS:
        module.fail_json(msg=f"name: there is no setting {module.params['name']!r}; known are {', '.join(SETTINGS)}")
    setting = SETTINGS[module.params["name"]]
    change = apply if module.params["state"] == "present" else undo
    result = Result(setting.name)
    held: tuple[str, ...] = ()
    try:
        host = Host(module.params["root"], module.params["foreseen"] if module.check_mode else None)
        result = change(setting, module.params["wanted"], host, module.check_mode)
        held = holders(host) if result.reboot_required else ()
    except (Failed, Refused) as error:
        result.failure = str(error)
    except ValueError as error:  # the root is no directory, or its .hostcheck.json is no recording
        module.fail_json(msg=str(error))
    for warning in (*result.warnings, *result.left):
        module.warn(warning)
    plain = {
        "changed": result.changed,
        "diff": result.diff,
        "live": result.live,
        "persistent": result.persistent,
        "effective": result.effective,
        "owner": result.owner,
        "not_applicable": result.not_applicable,
        "reboot_required": result.reboot_required,
        "held": held,
        "trial": result.trial,
        "done": result.done,
        "foreseen": result.foreseen,
        "left": result.left,
    }
    if result.failure:
        before = f" (done before it: {', '.join(result.done)})" if result.done else ""
        module.fail_json(msg=result.failure + before, **plain)
    module.exit_json(**plain)


if __name__ == "__main__":
    main()
