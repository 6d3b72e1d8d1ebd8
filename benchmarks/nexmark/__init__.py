"""Nexmark: an online auction as three streams, and queries over them (github.com/nexmark/nexmark), checked against a batch computation.

Not here, and why: q10 (writes files: a connector), q12 (windows of processing time: windows are of event time only), q6 (the last ten
winning bids by seller: an aggregate over rows that are taken back, bounded in number, has no exact undo).
"""
