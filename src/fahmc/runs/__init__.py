"""How a run lives: planned, cut into blocks, kept on disk, shown on screen."""
