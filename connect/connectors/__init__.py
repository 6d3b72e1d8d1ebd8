"""The built-in connectors, one file each, and what they share. Loaded by `logflume.connect.registry` by name."""
