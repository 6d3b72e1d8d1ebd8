"""The APIs of the group coordinator, one file a family."""
