"""LayerNorm turned into RMSNorm where that is proven to be exact."""
