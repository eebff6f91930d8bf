"""Samplers whose server thinks between rounds: what came back decides what is asked next, and when to stop."""
