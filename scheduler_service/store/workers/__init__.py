"""What has threads of its own, apart from the engine's.

- ``decision_recorder``: stores decisions, and writes their lines in the log
- ``host_state_writer``: stores what hosts report
- ``store_monitor``: watches the database
"""
