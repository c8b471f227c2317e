"""The database: hosts and instances, claims, and records of what happened.

- ``schema``, ``migrations``, ``migrate``: the tables and their versions
- ``connection``: transactions, and the change record that ends each
- ``rows``, ``postgresql``: many rows in one statement
- ``reading``: documents, snapshots and the change feed
- ``claims``: capacity is taken, confirmed, moved and released
- ``writing``: a module for each entity, and inventory documents
- ``records``: decisions, heartbeats, quarantined messages, the audit

The functions of these modules keep no state: any thread may call them with a
connection, or a :class:`~scheduler_service.store.connection.Writer`, of its
own.
"""
