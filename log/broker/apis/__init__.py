"""The APIs of topics, records, configs and the cluster, one file a family; those of groups and transactions in their rooms."""
