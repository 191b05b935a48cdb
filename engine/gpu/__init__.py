"""The engine's backend on a GPU: static buffers, captured graphs, draws on the device."""
