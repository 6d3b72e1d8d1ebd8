"""The APIs of the transaction coordinator: what producers ask, and what operators ask."""
