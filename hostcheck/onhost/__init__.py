"""Everything that may run on an audited host: standard library only, Python 3.9, relative imports."""
