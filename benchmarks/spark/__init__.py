"""What Spark costs: beside the live engine, Spark's own operators and Kafka source, Parquet, one core, an empty job.

Run: python -m benchmarks.spark [history|kafka|reading|archives|topologies|two_cores|state|sharing|start|stores]
[--records=N] [--partitions=N] [--keys=N] [--queries=N] [--only=OPERATOR]
[--connector=org.apache.spark:spark-sql-kafka-0-10_2.13:VERSION] [--json]

Figures are CPU: that of Spark's JVM and its Python workers, the broker's left out, so that they mean the same whoever else is
at work. What is compared is measured in one session, one after the other, each once to warm up
(`stores`: in a session each, which its first micro-batches warm up).
"""
