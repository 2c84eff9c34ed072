"""What a measurement starts and drives: brokers, proxies, clients, cores, clocks."""
