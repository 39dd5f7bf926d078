"""Audit, fix and prove the state of Linux hosts with Intel Arc GPUs."""

__version__ = "0.1.0"
