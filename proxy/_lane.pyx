# cython: language_level=3, boundscheck=False, wraparound=False
"""The data path's lane, compiled. A placeholder."""

ABI = 1
