"""A page that shows a run while it goes on, from what the run leaves on disk: it cannot disturb what it only reads."""
