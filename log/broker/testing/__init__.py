"""What only tests use: the surroundings of a coordinator in memory."""
