"""Any Kafka client reads what logflume writes: python examples/read_with_confluent.py 127.0.0.1:9092 delays"""

import sys

from confluent_kafka import Consumer, TopicPartition

address, topic = sys.argv[1:3]
consumer = Consumer({"bootstrap.servers": address, "group.id": "reader", "isolation.level": "read_committed"})
partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10)[1] for p in partitions}
count = 0
while any(position.offset < ends[position.partition] for position in consumer.position([TopicPartition(topic, p) for p in ends])):
    message = consumer.poll(5.0)
    if message is None:
        break
    if message.error() is None:
        count += 1
        if count <= 3:
            print(message.partition(), message.offset(), message.key()[:-8].decode(), message.value().decode())
print(f"confluent-kafka read {count:,} records of {topic}")
consumer.close()
