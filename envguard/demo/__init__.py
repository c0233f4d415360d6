"""The eleven-minute gap, replayed for real in a throw-away directory: wheels, index, stage, loop, story."""
