"""A plain row interpreter of topologies, small and slow: what the operators mean, one record at a time, in order.

It knows nothing of the package. It is proven by recorded cases of Kafka Streams (`test_oracle.py`), and the operators are
then compared with it on inputs that nobody recorded.
"""
