"""Spark: the data source `format("logflume")`, and backfills that run a topology's history as a Spark job (architecture, D11)."""
