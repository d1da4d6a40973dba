"""Versioned model artifacts in an object store: digests, signatures and releases."""
