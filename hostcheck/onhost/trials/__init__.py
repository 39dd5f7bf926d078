"""Trials: what can be switched while a host runs, one file per toggle; the run, its journal, and the way back."""
