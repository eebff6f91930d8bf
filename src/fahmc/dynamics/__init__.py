"""What one client does to one position in one round: pure functions."""
