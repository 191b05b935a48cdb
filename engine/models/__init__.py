"""One file a model family, on shared layers."""
