"""How a user of each kind asks, and how it tells a good answer from a bad one."""
