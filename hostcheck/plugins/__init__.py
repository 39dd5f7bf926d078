"""Ansible plugins; they run on the controller."""
