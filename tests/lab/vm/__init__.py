"""A Debian VM under QEMU as a test host: its kernel answers, not a recording.

``build`` makes the image once, ``host.Vm`` starts it for a test, ``cards`` says what the PCIe tree
looks like, ``qemu`` how the machine is put together, and ``guard`` sees that nothing outlives a run.
"""
