"""What the broker knows of the cluster and of itself: metadata, features, disk space, partitions in trouble."""
