"""Bayesian federated learning: one posterior when the rows sit with several owners and may not move."""
