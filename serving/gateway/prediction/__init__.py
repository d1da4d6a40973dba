"""The prediction hop: checks tensors before a model server sees them, and keeps answers."""
