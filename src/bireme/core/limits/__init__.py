"""How much one may take: limits of associations, QOS and partitions, licences, and the ledger of what is held."""
