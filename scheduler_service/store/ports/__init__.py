"""What a daemon asks the store for while it processes a request.

Where to look:

- ``host_source``: the hosts, kept up to date, and the engine's connections
- ``claimer``: claims, zones and changes of claims of a batch: releases,
  confirmations and moves that are given up
- ``recall``: outcomes of messages that are delivered again
- ``quarantine``: counts redelivered messages, and quarantines them
"""
