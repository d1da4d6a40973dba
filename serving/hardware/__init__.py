"""The hardware that models run on: GPUs, how they divide, and the AWS instances that hold them.

The numbers are in `gpus.yaml` and `instances.psv`, each with its source and its date.
"""
