"""Classic groups: the members agree, a leader assigns."""
