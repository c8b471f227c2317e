"""Hosts as columns: a NumPy array per attribute, and a batch's overlay."""

from scheduler_service.columns.build import build_table
from scheduler_service.columns.changes import Overlay
from scheduler_service.columns.dictionary import DictionaryColumn
from scheduler_service.columns.instances import InstanceIndex
from scheduler_service.columns.table import HostTable, ResourceColumns

__all__ = [
    'DictionaryColumn',
    'HostTable',
    'InstanceIndex',
    'Overlay',
    'ResourceColumns',
    'build_table',
]
