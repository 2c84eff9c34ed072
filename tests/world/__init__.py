"""A world in a seed: clients, instances of the real core, brokers and a network, on one simulated clock.

python -m tests.world --seeds 1000 --minutes 5
"""
