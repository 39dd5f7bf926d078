"""Ways to show findings: all of them from the same reports."""
