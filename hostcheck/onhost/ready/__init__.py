"""Bring-up on the host: wait for its cards, mark it ready, check the mark, keep evidence of a device loss."""
