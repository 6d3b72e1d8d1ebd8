"""Nexmark (github.com/nexmark/nexmark): an auction as three streams, and queries over them, checked against a batch computation.

Not here, and why: q10 writes files (a connector), q12 has windows of processing time (ours are of event time only), and q6 takes
rows back from an aggregate over the last ten of them, which has no exact undo.
"""
