"""Settings under Kafka's names: what each is, and how one is looked up."""
