"""Consumer groups of KIP-848, and members of the classic protocol in them."""
