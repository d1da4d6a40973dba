"""What a fleet does with a day of traffic: how late answers are, what it takes, what it costs.

load         requests a second over time, and the moments at which they arrive
slots        requests on the replicas that are ready, first come first served
autoscaler   the HPA's own formula, windows and limits
fleet        all of it together, step by step
"""
