"""One file per source: dataclasses, pure parse functions, and ``read(reader)`` that wires the two."""
