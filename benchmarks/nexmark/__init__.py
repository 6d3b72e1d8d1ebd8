"""Nexmark (github.com/nexmark/nexmark): an auction as three streams, and queries over them, checked against a batch computation.

In SQL all 23 (q0 to q22; `statements` says what of three of them is ours). In the DSL 20: q10 writes files (a connector), q12 has
windows of the time of processing, and q6 takes rows back from an aggregate over the last ten of them, which only a list can.
"""
