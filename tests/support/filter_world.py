"""What a plain rule reads: the documents, one host at a time."""

from __future__ import annotations

from typing import Any

RULES: dict[str, Any] = {}


def rule(name):
    def register(function):
        RULES[name] = function
        return function

    return register


class World:
    """An inventory document, a request and the settings."""

    def __init__(self, inventory, request, settings):
        self.inventory = inventory
        self.request = request
        self.settings = settings
        self.flavor = request.get('flavor', {})
        self.specs = self.flavor.get('extra_specs', {})
        self.hints = request.get('scheduler_hints', {})
        image = request.get('image') or {}
        self.image_id = image.get('id')
        self.properties = image.get('properties', {})

    def aggregates(self, host):
        return [
            one
            for one in self.inventory.get('aggregates', [])
            if host['host'] in one['hosts']
        ]

    def values(self, host, key):
        found = [one['metadata'].get(key) for one in self.aggregates(host)]
        return {value for value in found if value is not None}

    def metadata(self, host):
        found = {}
        for one in self.aggregates(host):
            for key, value in one['metadata'].items():
                parts = {part.strip() for part in value.split(',')}
                found[key] = found.get(key, set()) | parts
        return found

    def number(self, host, key, default, cast):
        values = self.values(host, key)
        if not values:
            return default
        try:
            return min(cast(value) for value in values)
        except ValueError:
            return default

    def instances(self, host):
        return [
            one
            for one in self.inventory.get('instances', [])
            if one['host'] == host['host']
        ]

    def members_on(self, host, group):
        there = {one['uuid'] for one in self.instances(host)}
        return len(there & set(group['members']))

    def group(self):
        wanted = self.request.get('instance_group')
        for one in self.inventory.get('server_groups', []):
            if one['uuid'] == wanted:
                return one
        return None

    def hosts_of(self, uuids):
        return {
            one['host']
            for one in self.inventory.get('instances', [])
            if one['uuid'] in uuids
        }

    def hint(self, name):
        value = self.hints.get(name)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        return value or None

    def num_instances(self, host):
        given = host.get('num_instances')
        return len(self.instances(host)) if given is None else given


def figure(host, name):
    return host.get(name) or 0


def ratio(world, host, name):
    return host.get(name) or getattr(world.settings, name)


def free_disk_mb(host):
    free = figure(host, 'local_gb') - figure(host, 'local_gb_used')
    least = host.get('disk_available_least')
    return (free if least is None else min(free, least)) * 1024


def asked_disk(world):
    flavor = world.flavor
    return 1024 * (
        flavor.get('root_gb', 0) + flavor.get('ephemeral_gb', 0)
    ) + flavor.get('swap', 0)
