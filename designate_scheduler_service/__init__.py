"""A pool filter of Designate that asks scheduler-service for the pool.

A distribution of its own, installed beside designate-central. It imports
nothing of scheduler-service: the two meet on the message bus.
"""
