"""The local stack: real servers as supervised processes on loopback."""
