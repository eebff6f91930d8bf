"""Who holds what: federations, partitions for simulations, tables and the embedded trial."""
