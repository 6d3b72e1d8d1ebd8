"""The APIs of the transaction coordinator, by name: what the broker plugs in."""

from __future__ import annotations

from logflume.log.broker.ports import Clock, TxnPartitions
from logflume.log.broker.requests import Handler

from .apis.admin import TransactionAdminHandlers
from .apis.producers import ProducerHandlers
from .coordinator import TransactionCoordinator


def handlers(
    coordinator: TransactionCoordinator, partitions: TxnPartitions, clock: Clock, *, offsets_partition_count: int
) -> dict[str, Handler]:
    """Return API name -> handler; a handler returns a response message or a Reply of one.

    `offsets_partition_count`: partitions of `__consumer_offsets`, for AddOffsetsToTxn.
    """
    producers = ProducerHandlers(coordinator, partitions, offsets_partition_count)
    admin = TransactionAdminHandlers(coordinator, partitions, clock)
    return {
        "InitProducerId": producers.init_producer_id,
        "AddPartitionsToTxn": producers.add_partitions_to_txn,
        "AddOffsetsToTxn": producers.add_offsets_to_txn,
        "EndTxn": producers.end_txn,
        "WriteTxnMarkers": admin.write_txn_markers,
        "ListTransactions": admin.list_transactions,
        "DescribeTransactions": admin.describe_transactions,
    }
