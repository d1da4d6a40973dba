"""What a spec takes: replicas, GPUs, limits and dollars, each with the sum that it comes from.

littles_law, batching, queue_delay   how many requests a replica bears
architecture, kv_cache, llm_memory   what a language model needs of a GPU, and what fits
tensor_parallel, roofline            over how many GPUs, and how fast at best
choice, cost, packing, floor_plan    which machines, for how much, and what shares one
scaling, checks                      what the autoscaler is told, and what must hold besides
plan, data, report, page             all of it: for machines, a terminal and a browser
simulator/                           what a fleet does with a day of traffic
"""
