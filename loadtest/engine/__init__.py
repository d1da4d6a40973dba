"""Open-loop load inside Locust; the only part of the house where gevent is at work."""
