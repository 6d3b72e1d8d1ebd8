"""logflume: a Kafka-protocol log, stream topologies, SQL, connectors and Spark backfills in one package."""

__version__ = "0.1.0"
