"""Submission-latency probe: worker (torch, sent as text), session, schedule, statistics, verdict, receipt."""
