"""What the engine needs of the store: its ports, implemented on SQL.

Where to look:

- ``host_source``: the hosts, kept up to date, and the engine's connections
- ``claimer``: claims, zones and changes of claims of a batch: releases,
  confirmations and moves that are given up
- ``recall``: outcomes of messages that are delivered again
- ``decision_recorder``: stores decisions, and writes their lines in the log
- ``host_state_writer``: stores what hosts report
- ``store_monitor``: watches the database
- ``redeliveries``: counts redelivered messages, and quarantines them
"""
